"""Convolutional networks on images, and the layers that they are written in, once for one client and for a stack."""
