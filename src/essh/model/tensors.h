#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/model/config.h"
#include "essh/spectral/modal_init.h"
#include "essh/tensor/weight.h"

namespace essh {

// The capacity axis along which a dimension of a tensor is sliced; `unit` rows or columns belong to one channel or
// unit.
struct Cut {
  Axis axis = Axis::None;
  Index unit = 1;

  Index kept(Index full, Capacity capacity) const { return axis == Axis::None ? full : capacity[axis] * unit; }
};

// Initial values of a tensor: N(0, deviation), a constant, or a member of the modal table.
struct Initial {
  double deviation = 0;
  double constant = 0;
  std::vector<double> ModalTable::*modal = nullptr;

  static Initial normal(double deviation) { return {.deviation = deviation}; }
  static Initial fill(double value) { return {.constant = value}; }
  static Initial from(std::vector<double> ModalTable::*member) { return {.modal = member}; }
};

// Of matrices that write to the residual stream: N(0, 0.02 / sqrt(2 layers)).
Initial initial_out(const ModelConfig& config);

// The role of a tensor, for the optimizer and for readers of files.
enum class Role { Embedding, Gain, Matrix, Bias, Modal, ZeroLag, Blend };

// One tensor of the model. Vectors have rank 1 and one column.
struct ModelTensor {
  std::string name;
  Index layer = -1;  // -1 outside the blocks
  int rank = 2;
  Index rows = 0;
  Index cols = 1;
  Cut row_cut = {};
  Cut col_cut = {};
  Initial initial = Initial::normal(0.02);
  Role role = Role::Matrix;
  bool decays = true;  // under weight decay in pretraining; refinement decays every tensor of rank 2
  // Directly follows the previous tensor in a ParameterLayout; at full capacity both form one matrix.
  bool stacked = false;
  bool slope = false;  // companion of another tensor (ElasticConfig::slopes)

  // Rows and columns kept at a capacity.
  Index kept_rows(Capacity capacity) const { return row_cut.kept(rows, capacity); }
  Index kept_cols(Capacity capacity) const { return col_cut.kept(cols, capacity); }
  std::vector<Index> shape() const;
  // Stored and computed in the model's dtype; all other tensors are float32.
  bool is_matrix() const { return role == Role::Matrix || role == Role::Embedding; }
};

// Every tensor of a model, in one fixed order: names, shapes, initial values and slices derive from this list alone.
std::vector<ModelTensor> tensor_list(const ModelConfig& config);

// Offsets of the tensors in one flat array; weights, gradients and optimizer states share the layout.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  Index offset(std::size_t tensor) const { return offsets_[tensor]; }
  // Elements of the flat array, padding included.
  Index size() const { return size_; }
  // Elements, from the first, that hold everything but the matrices.
  Index tables() const { return tables_; }
  // Elements of all tensors.
  Index parameters() const { return parameters_; }
  // Consecutive tensors and their slopes, which lie in the same order; empty without slopes.
  struct Sloped {
    Index begin, slopes, size;
  };
  const std::vector<Sloped>& sloped() const { return sloped_; }
  // Index of "mixer.decay" in layer 3, or of "model.norm.weight" with layer -1. The tensor must exist.
  std::size_t find(Index layer, std::string_view name) const;

 private:
  std::vector<ModelTensor> tensors_;
  std::vector<Index> offsets_;
  Index size_ = 0;
  Index tables_ = 0;
  Index parameters_ = 0;
  std::vector<Sloped> sloped_;
};

// The weights of a model on the device of a pass, one handle per tensor: matrices in any format, all other tensors in
// Wide<T>.
struct Weights {
  std::vector<Weight> tensors;
  bool stacks = false;  // stacked tensors follow each other in memory, as in a ParameterLayout
  std::shared_ptr<const std::vector<std::vector<std::byte>>> made = {};  // memory of tensors that a slice computed

  const Weight& operator[](std::size_t tensor) const { return tensors[tensor]; }
  template <class W>
  Matrix<const W> table(std::size_t tensor) const {
    return tensors[tensor].as<W>();
  }
  template <class W>
  Vector<const W> vector(std::size_t tensor) const {
    return {tensors[tensor].as<W>().data, tensors[tensor].rows};
  }
};

// Handles into flat arrays of a layout: matrices in T, tables in Wide<T>.
template <class T>
Weights weights_in(const ParameterLayout& layout, const T* matrices, const Wide<T>* tables);

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

// A model's weights in host memory, all of type W.
template <class W>
class Parameters {
 public:
  explicit Parameters(const ModelConfig& config);
  const ParameterLayout& layout() const { return layout_; }
  W* data() { return values_.data(); }
  const W* data() const { return values_.data(); }
  std::span<W> tensor(std::size_t index);
  std::span<const W> tensor(std::size_t index) const;
  Weights weights() const { return weights_in<W>(layout_, values_.data(), values_.data()); }

 private:
  ParameterLayout layout_;
  std::vector<W> values_;
};

}  // namespace essh
