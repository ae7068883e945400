"""Long work on many rows: divided into fixed ranges, each written once, by one worker or several."""
