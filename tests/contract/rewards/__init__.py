"""What every reward promises, and what a pool of grader processes does about bad samples."""
