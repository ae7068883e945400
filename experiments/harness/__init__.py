"""What all experiments share: collections, stored runs, tables, command lines, measurements of cost."""
