"""What people see of a run: tables, plots and files of numbers."""
