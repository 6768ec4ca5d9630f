"""What the tests on a real Kubernetes have in common: the cluster, images, places, traffic, observers and evidence."""
