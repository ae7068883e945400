"""The latent graph recurrent network (Dong and Niu 2021), and the cross-encoder that it is compared with."""
