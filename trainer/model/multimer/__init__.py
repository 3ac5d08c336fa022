"""What the model of complexes (AF2-multimer v3) has in place of the monomer's parts."""
