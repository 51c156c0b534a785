#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/model/capacity.h"
#include "essh/model/config.h"

namespace essh {

// Along which axis of capacity a dimension of a tensor is cut; `unit` rows or columns belong to one channel or unit.
enum class Elastic { Fixed, Channels, Ffn };
struct Axis {
  Elastic elastic = Elastic::Fixed;
  Index unit = 1;
};

enum class Initial { Normal, NormalOut, One, Zero, ClockBias, ZeroLag, Decay, Frequency, ReadoutCos, ReadoutSin };

// What the optimizer and the reader of a file need to know of a tensor's part in the model.
enum class Role { Embedding, Gain, Matrix, Bias, Modal, ZeroLag, Blend };

// One tensor of the model. Vectors have rank 1 and one column.
struct ModelTensor {
  std::string name;
  Index layer = -1;  // -1 outside the blocks
  int rank = 2;
  Index rows = 0;
  Index cols = 1;
  Axis row_axis = {};
  Axis col_axis = {};
  Initial initial = Initial::Normal;
  Role role = Role::Matrix;

  // Rows and columns that remain at a capacity.
  Index kept_rows(Capacity capacity) const;
  Index kept_cols(Capacity capacity) const;
  std::vector<Index> shape() const;
  std::vector<Index> shape(Capacity capacity) const;
  // Stored and computed in the model's dtype; everything else stays in float32.
  bool is_matrix() const { return role == Role::Matrix || role == Role::Embedding; }
};

// Every tensor of a model, in one fixed order: names, shapes, initial values and slices derive from this list alone.
std::vector<ModelTensor> tensor_list(const ModelConfig& config);

// Where each tensor lies in one flat array of elements; weights, gradients and optimizer moments share the layout.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  Index offset(std::size_t tensor) const { return offsets_[tensor]; }
  // Elements of the flat array, gaps of alignment included.
  Index size() const { return size_; }
  // Elements, from the first, that hold everything but the matrices.
  Index tables() const { return tables_; }
  // Elements of all tensors.
  Index parameters() const { return parameters_; }
  // Index of "mixer.decay" in layer 3, or of "model.norm.weight" with layer -1. Asking for one that is not there is our
  // bug.
  std::size_t find(Index layer, std::string_view name) const;

 private:
  std::vector<ModelTensor> tensors_;
  std::vector<Index> offsets_;
  Index size_ = 0;
  Index tables_ = 0;
  Index parameters_ = 0;
};

// The weights of a model: matrices in T, everything small in Wide<T>.
template <class T>
struct Weights {
  const ParameterLayout* layout;
  const T* matrices;
  const Wide<T>* tables;

  Matrix<const T> matrix(std::size_t tensor) const {
    const auto& spec = layout->tensors()[tensor];
    return dense(matrices + layout->offset(tensor), spec.rows, spec.cols);
  }
  Matrix<const Wide<T>> table(std::size_t tensor) const {
    const auto& spec = layout->tensors()[tensor];
    return dense(tables + layout->offset(tensor), spec.rows, spec.cols);
  }
  Vector<const Wide<T>> vector(std::size_t tensor) const {
    return {tables + layout->offset(tensor), layout->tensors()[tensor].rows};
  }
};

// Gradients, all in Wide<T>, added to.
template <class T>
struct Gradients {
  const ParameterLayout* layout;
  Wide<T>* data;

  Matrix<Wide<T>> matrix(std::size_t tensor) const {
    const auto& spec = layout->tensors()[tensor];
    return dense(data + layout->offset(tensor), spec.rows, spec.cols);
  }
  Vector<Wide<T>> vector(std::size_t tensor) const {
    return {data + layout->offset(tensor), layout->tensors()[tensor].rows};
  }
};

// A model's weights in host memory, all in W: what files are read into and optimizers update.
template <class W>
class Parameters {
 public:
  explicit Parameters(const ModelConfig& config);
  const ParameterLayout& layout() const { return layout_; }
  W* data() { return values_.data(); }
  const W* data() const { return values_.data(); }
  std::span<W> tensor(std::size_t index);
  std::span<const W> tensor(std::size_t index) const;
  Weights<W> weights() const { return {&layout_, values_.data(), values_.data()}; }

 private:
  ParameterLayout layout_;
  std::vector<W> values_;
};

}  // namespace essh
