#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "essh/decode/pass_inputs.h"
#include "essh/decode/streamed_model.h"
#include "essh/model/model.h"
#include "essh/model/slice.h"
#include "essh/store/stored_model.h"

namespace essh {

// One tier of a model as an engine runs it: the slice as a model of its own, with its weights where the stream
// computes. On the CPU these are the stored weights in place; on a GPU they are packed once, in T.
template <class T>
class TierModel {
 public:
  TierModel(const StoredModel& stored, Capacity capacity, Stream& stream, const StateFormats& formats);
  TierModel(const TierModel&) = delete;
  TierModel& operator=(const TierModel&) = delete;

  const Model<T>& model() const { return model_; }
  const Weights& weights() const { return weights_; }
  Capacity capacity() const { return capacity_; }
  // Parts of a sequence's state, and how they lie: fixed parts one behind the other.
  const std::vector<StatePart>& parts() const { return parts_; }
  const std::vector<Index>& fixed_offsets() const { return offsets_; }
  Index fixed_bytes() const { return fixed_bytes_; }
  std::size_t weight_bytes() const;
  // What a step reads of the weights: codes where there are any, or the weights as they are.
  std::size_t step_bytes(bool codes) const;
  Format matrix_format() const { return weights_.tensors.back().format; }  // tables come first
  // The streamed step, made when it is first asked for; null where there is none. Reads codes if the weights take
  // `codes_from` bytes.
  StreamedModel<T>* streamed(Stream& stream, std::size_t codes_from);

  // A step of a number of sequences, recorded: always the same operands in the same places.
  struct Step {
    Array<std::byte> inputs;
    std::vector<std::byte> uploaded;
    std::uint64_t pointers = 0;  // PassInputs::pointers of the upload
    Recording recording;
    // The same with the tokens drawn before, which draws the next.
    Array<LogitKey> keys;
    Recording drawn;

    // Returns where the inputs lie for the kernels. Pointers are sent only when they changed.
    const std::byte* upload(const PassInputs& given, Stream& stream);
  };
  // By sequences, SequenceBatch::longest and whether they have capacities of their own.
  using StepKey = std::tuple<Index, Index, bool>;
  Step& step(const StepKey& key, Stream& stream);
  // No pass may be running.
  void forget_steps() { steps_.clear(); }

 private:
  Capacity capacity_;
  Model<T> model_;
  Array<T> matrices_;
  Array<float> tables_;
  Weights weights_;
  std::vector<CodedWeight> coded_;  // in host memory, of the stored model
  std::vector<StatePart> parts_;
  std::vector<Index> offsets_;
  Index fixed_bytes_ = 0;
  std::map<StepKey, Step> steps_;
  std::unique_ptr<StreamedModel<T>> streamed_;
  bool asked_for_streamed_ = false;
};

}  // namespace essh
