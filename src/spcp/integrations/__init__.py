"""Other libraries' ways to train, measure, log and share, each in a file of its name; import the one you need."""
