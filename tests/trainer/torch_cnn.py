"""The convolutional network of trainer/models/cnn.cpp in PyTorch: same names, same shapes, loss and gradients of one training
pass from given parameters. For comparing; it knows nothing of rondo but the names."""
import numpy
import torch
from torch.nn import functional


def loss_and_gradients(parameters, images, targets, average=False, epsilon=1e-5, momentum=0.1):
    """parameters: name -> array, as rondo names them (conv1.weight, bn1.weight, ..., linear.bias), all float32 or all float64.
    images: [samples, channels, height, width]; targets: [samples] of int.
    Returns the sum of the samples' losses, name -> gradient of that sum, and name -> running statistics after this first pass."""
    tensors = {name: torch.tensor(numpy.asarray(value), requires_grad=True) for name, value in parameters.items()}
    dtype = tensors["linear.weight"].dtype
    x = torch.tensor(numpy.asarray(images), dtype=dtype)
    buffers = {}
    block = 1
    while f"conv{block}.weight" in tensors:
        x = functional.conv2d(x, tensors[f"conv{block}.weight"], tensors.get(f"conv{block}.bias"), padding=1)
        if f"bn{block}.weight" in tensors:
            mean = torch.zeros(x.shape[1], dtype=dtype)
            variance = torch.ones(x.shape[1], dtype=dtype)
            x = functional.batch_norm(x, mean, variance, tensors[f"bn{block}.weight"], tensors[f"bn{block}.bias"],
                                      training=True, momentum=momentum, eps=epsilon)
            buffers[f"bn{block}.running_mean"] = mean.numpy()
            buffers[f"bn{block}.running_var"] = variance.numpy()
            buffers[f"bn{block}.num_batches"] = numpy.ones(1, variance.numpy().dtype)
        x = functional.relu(x)
        if block <= 2:
            x = functional.max_pool2d(x, 2)
        block += 1
    x = x.mean(dim=(2, 3)) if average else x.flatten(1)
    logits = functional.linear(x, tensors["linear.weight"], tensors["linear.bias"])
    loss = functional.cross_entropy(logits, torch.tensor(numpy.asarray(targets), dtype=torch.int64), reduction="sum")
    loss.backward()
    return loss.item(), {name: tensor.grad.numpy() for name, tensor in tensors.items()}, buffers
