"""What is wrong with the whole job or a stage and blames no machine: uneven work, pauses, barriers."""
