// A model's tensors as the views that a tensor file is written from and read into. Knows no folders.
#pragma once

#include <string>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/files/tensor_file.hpp"

namespace rondo::trainer {

/// Views of the parameters' parts of `array`, of the options' type, in which offset() leads to each;
/// each is named `prefix` and the parameter's name. Borrows, writable where the array is.
void add_views(const DistributedDataParallel& ddp, const std::string& prefix, const void* array,
               std::vector<TensorView>& views);

/// Views of the parameters and the buffers.
std::vector<TensorView> model_views(DistributedDataParallel& ddp);

/// Copies the tensors of the file to where the views point. kDataError names a tensor that the file
/// lacks or has in another shape or type; what else it holds is ignored.
Status fill(const TensorFile& file, const std::vector<TensorView>& views);

}  // namespace rondo::trainer
