"""What the clusters share: values on their way, failures, held ports, room and the guard."""
