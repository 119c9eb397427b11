"""Forms of operators that families of every kind of machine lower alike."""
