// GPT-2's parameters from and to files with Hugging Face's names, so that released weights can be
// trained further and rondo's be used elsewhere. Knows names and layouts; downloads nothing and
// makes no model.
#pragma once

#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/files/tensor_file.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

/// Of every released GPT-2; no file of weights says it.
inline constexpr size_t kGpt2HeadWidth = 64;

// Both take parameters that are named as Hugging Face's ("wte.weight", "h.0.attn.c_attn.weight",
// ...), with or without "transformer." in front, and `values` where each is, by parameter; those
// that add to another (Parameter::adds_to) have no value and are left out. The matrices of c_attn,
// c_proj and c_fc are [out x in] in the model and [in x out] in the file.

/// Any floating-point type of at least 16 bits becomes T. Not needed in the file, and ignored: the
/// buffers attn.bias and attn.masked_bias, and lm_head.weight where the model has none and it
/// equals wte.weight. kDataError, naming the tensor: one that is missing, one that the model does
/// not have, other shapes (both are named) or types; and the flags that make a model of the file's
/// sizes, where those are others. After an error values are unspecified.
template <class T>
Status load_gpt2_weights(const TensorFile& file, const std::vector<Parameter>& parameters,
                         const std::vector<T*>& values);

/// Writes a file that transformers' GPT2LMHeadModel loads.
template <class T>
Status save_gpt2_weights(const std::string& path, const std::vector<Parameter>& parameters,
                         const std::vector<const T*>& values);

}  // namespace rondo::trainer
