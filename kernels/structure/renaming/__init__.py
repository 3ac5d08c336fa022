"""How well two namings of a structure's atoms suit a prediction."""
