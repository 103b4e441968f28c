#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/config.h"
#include "formats/safetensors_writer.h"
#include "model/weights.h"

namespace calla {

// One matrix or vector of a checkpoint in MLX's form: what it is called there and which weights it holds.
struct Part {
  enum class Kind : uint8_t { kMatrix, kNorm, kGdnNorm, kConv, kALog, kDtBias };
  Kind kind = Kind::kMatrix;
  std::string name;              // of the module ("….q_proj") for a matrix, of the tensor for a vector
  std::vector<int64_t> shape;    // of the tensor before quantisation; the last is the input side of a matrix
  int bits = 4;                  // of a matrix: 4 or 8
  Dtype dtype = Dtype::kBf16;    // of a vector
  std::vector<Linear> matrices;  // one, or one per expert, stacked
  const std::vector<float>* values = nullptr;  // of a vector; lives in the Weights

  int in() const { return static_cast<int>(shape.back()); }
  int out() const { return matrices.front().out; }  // rows of each matrix
  size_t row_bytes() const { return static_cast<size_t>(in()) * bits / 8; }
  size_t groups() const { return static_cast<size_t>(in()) / kGroup; }
  // Weight, scales and biases of a matrix; one tensor for a vector.
  std::vector<TensorSpec> tensors() const;
  uint64_t bytes() const;         // of these tensors
  uint64_t values_count() const;  // numbers of the model, before quantisation
};

// The parts of the model in the order of its layers, and those of its MTP head. They point into `w`.
std::vector<Part> list_parts(const Weights& w);
std::vector<Part> list_mtp_parts(const Mtp& mtp);

// Weights of the shape of `c` without data: every pointer is null, every vector zero. For writing checkpoints from
// nothing.
Weights skeleton(const ModelConfig& c, bool mtp);

}  // namespace calla
