"""A folder of files as a collection: read, indexed, kept up to date, and searched."""
