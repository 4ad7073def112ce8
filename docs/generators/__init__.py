"""What the pages contain that is made from the code: one module for each kind of table."""
