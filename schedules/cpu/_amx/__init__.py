"""What the families that multiply by AMX tiles share: costs, packed weights, instructions."""
