"""What the pages of results are written from, and their parts."""
