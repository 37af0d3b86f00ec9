"""What gpu_check.py is made of; travels with it in a kit."""
