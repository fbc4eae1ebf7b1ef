#include "offload/engine/probe/probe_inputs.h"

#include <algorithm>

#include "base/errors.h"
#include "offload/schedule/pass_plan.h"

namespace longshore {
namespace {

// The run's own shape is probed if it takes at most this time.
constexpr double kMostSeconds = 10.0;
// The larger of the small shapes takes about this long, and has at least kLeastPositions: below,
// fixed memory of kernels hides the growth with positions.
constexpr double kSmallSeconds = 1.0;
constexpr int64_t kLeastPositions = 128;
// A loss in chunks takes no longer with more positions, but more memory.
constexpr int64_t kMostForAChunk = 65536;
// Operations of forward twice and backward once per matrix element, and per pair in attention,
// whose backward recomputes the scores.
constexpr double kFlopsOfMatrix = 8.0;
constexpr double kFlopsOfPair = 9.0;
// Seconds of kernel launches for each document.
constexpr double kSecondsOfDocument = 2e-4;

// Returns the next smaller shape. Halving preserves factors such as 2 and 4 of most shapes.
int64_t half(int64_t positions) {
  return std::max<int64_t>(1, positions / 2);
}

class Inputs {
 public:
  Inputs(const UnitWork& work, int32_t kind, const MicroBatchShape& run, double flops,
         WholeShape whole)
      : work_(work), kind_(kind), run_(run), flops_(flops), whole_(whole) {}

  std::vector<ProbeInput> make() {
    const int64_t chunk = work_.positions_at_once;
    if (chunk > 0 && run_.positions > chunk) {
      // One chunk shows its own memory; beyond it only memory for all positions grows.
      add(chunk, chunk);
      add(std::min(run_.positions, kMostForAChunk), run_.longest_document);
    } else {
      const int64_t large = large_enough();
      const int64_t small = half(large);
      add(small, small);
      add(large, small);
      add(large, large);
    }
    const ProbeInput whole = input(run_.positions, run_.longest_document, run_.positions);
    if (whole_ == WholeShape::kAlways || probe_seconds(work_, whole, flops_) <= kMostSeconds) {
      add(whole);
    }
    return std::move(inputs_);
  }

 private:
  // Returns the positions of the larger of the small shapes.
  int64_t large_enough() const {
    int64_t positions = run_.positions;
    const auto seconds = [&](int64_t count) {
      return probe_seconds(work_, input(count, count, count), flops_);
    };
    const bool whole = seconds(positions) <= kMostSeconds;
    if (whole) positions = half(positions);
    while (half(positions) >= kLeastPositions && seconds(positions) > kSmallSeconds) {
      positions = half(positions);
    }
    return positions;
  }

  ProbeInput input(int64_t positions, int64_t longest, int64_t trained) const {
    const int64_t document =
        document_of(work_, kind_, {positions, std::min(longest, run_.longest_document)});
    return {.kind = kind_, .positions = positions, .document = document, .trained = trained};
  }
  void add(int64_t positions, int64_t longest) {
    const int64_t chunk = work_.positions_at_once;
    add(input(positions, longest, chunk > 0 ? std::min(chunk, positions) : positions));
  }
  void add(const ProbeInput& input) {
    if (std::ranges::find(inputs_, input) == inputs_.end()) inputs_.push_back(input);
  }

  const UnitWork& work_;
  int32_t kind_;
  const MicroBatchShape& run_;
  double flops_;
  WholeShape whole_;
  std::vector<ProbeInput> inputs_;
};

}  // namespace

UnitWork unit_work(const Model& model, UnitId id, int64_t longest_document, DeviceKind device) {
  const ModelSpec& spec = model.spec();
  const UnitSpec& unit = spec.unit(id);
  UnitWork work;
  const auto add = [&work](const ParamSpec& parameter) {
    if (parameter.is_matrix()) {
      work.matrix_elements += static_cast<double>(parameter.values());
    }
  };
  for (const ParamSpec& parameter : unit.parameters) add(parameter);
  for (const ParamRef ref : unit.tied) add(spec.parameter(ref));
  const UnitCode& code = model.code_of(id);
  work.matrix_elements += static_cast<double>(code.activation_elements() - code.idle_elements());
  const auto widen = [&work](const std::vector<CarryTensorSpec>& carry) {
    for (const CarryTensorSpec& tensor : carry) {
      work.widest_carry =
          std::max(work.widest_carry, static_cast<double>(tensor.elements_per_position));
    }
  };
  widen(unit.carry_out);
  if (id.value > 0) widen(spec.unit(UnitId(id.value - 1)).carry_out);
  work.positions_at_once = model.code_of(id).positions_at_once(device);
  work.documents = model.code_of(id).worst_documents(longest_document, device);
  LONGSHORE_CHECK(!work.documents.empty()) << unit.name;
  return work;
}

double probe_seconds(const UnitWork& work, const ProbeInput& input, double flops) {
  const auto positions = static_cast<double>(input.positions);
  const auto rows = work.positions_at_once > 0 ? static_cast<double>(input.trained) : positions;
  const auto document = static_cast<double>(input.document);
  return (kFlopsOfMatrix * work.matrix_elements * rows +
          kFlopsOfPair * positions * document * work.widest_carry) /
             flops +
         kSecondsOfDocument * positions / document;
}

int64_t document_of(const UnitWork& work, int32_t kind, const MicroBatchShape& shape) {
  const int64_t longest = std::min(shape.longest_document, shape.positions);
  if (kind == 0) return longest;
  return std::min(work.documents.at(static_cast<size_t>(kind)), longest);
}

std::vector<ProbeInput> probe_inputs(const UnitWork& work, const MicroBatchShape& run, double flops,
                                     WholeShape whole) {
  LONGSHORE_CHECK(run.positions >= 1 && run.longest_document >= 1 && flops > 0.0);
  std::vector<ProbeInput> all;
  for (size_t kind = 0; kind < work.documents.size(); ++kind) {
    Inputs inputs(work, static_cast<int32_t>(kind), run, flops, whole);
    for (const ProbeInput& input : inputs.make()) all.push_back(input);
  }
  return all;
}

class OneUnitModel::Silent : public Unit {
 public:
  Carry forward(UnitParameters, const Carry&, const MicroBatch&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
};

class OneUnitModel::SilentLoss : public LossUnit {
 public:
  Result loss(UnitParameters, const Carry&, const MicroBatch&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
  Result loss_and_gradients(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                            double, bool, GradientSink&) const override {
    return loss(parameters, in, batch);
  }
  at::Tensor logits(UnitParameters, const Carry&, const MicroBatch&,
                    const at::Tensor&) const override {
    LONGSHORE_CHECK(false) << "a stand-in is never run";
    return {};
  }
};

OneUnitModel::OneUnitModel(const Model& model, UnitId unit)
    : model_(model),
      real_(unit),
      before_(std::make_unique<Silent>()),
      behind_(std::make_unique<SilentLoss>()) {
  const ModelSpec& whole = model.spec();
  const UnitId first_with_gradient = execution_order(whole, Pass::kTrain).back();
  has_backward_ = unit >= first_with_gradient;
  UnitSpec probed = whole.unit(unit);
  if (unit.value > 0) {
    UnitSpec before;
    before.id = UnitId(0);
    before.name = "before " + probed.name;
    before.carry_out = whole.unit(UnitId(unit.value - 1)).carry_out;
    for (CarryTensorSpec& tensor : before.carry_out) {
      tensor.passes.reset();
      tensor.resident = false;
    }
    for (ParamRef& ref : probed.tied) {
      before.parameters.push_back(whole.parameter(ref));
      ref = {before.id, static_cast<int32_t>(before.parameters.size()) - 1};
    }
    if (unit > first_with_gradient && !before.has_trainable()) {
      before.parameters.push_back({.name = "gradients flow below " + probed.name,
                                   .shape = {1},
                                   .frozen = false,
                                   .init = {}});
    }
    spec_.units.push_back(std::move(before));
  }
  probed_ = UnitId(static_cast<int32_t>(spec_.units.size()));
  probed.id = probed_;
  for (CarryTensorSpec& tensor : probed.carry_out) tensor.resident = false;
  const bool loss = unit == whole.units.back().id;
  spec_.units.push_back(std::move(probed));
  if (!loss) {
    // The stand-in behind is the last unit; it reads the activation checkpoint.
    for (CarryTensorSpec& tensor : spec_.units.back().carry_out) tensor.running = false;
    UnitSpec behind;
    behind.id = UnitId(probed_.value + 1);
    behind.name = "behind " + whole.unit(unit).name;
    spec_.units.push_back(std::move(behind));
  }
  validate_model_spec(spec_);
}

const Unit& OneUnitModel::unit(UnitId id) const {
  return id == probed_ ? model_.unit(real_) : *before_;
}

const LossUnit& OneUnitModel::loss_unit() const {
  return probes_loss() ? model_.loss_unit() : *behind_;
}

std::string OneUnitModel::identity() const {
  std::string text = model_.code_of(real_).signature();
  if (text.empty()) return text;
  for (const UnitSpec& unit : spec_.units) {
    text += "\n" + std::to_string(unit.tied.size()) + " tied";
    for (const ParamSpec& parameter : unit.parameters) {
      text += parameter.in_halves ? ", in halves" : parameter.frozen ? ", frozen" : ", trained";
      for (const int64_t dimension : parameter.shape) text += " " + std::to_string(dimension);
      for (const int64_t dimension : parameter.unpacked) text += " of " + std::to_string(dimension);
    }
    text += "; carry";
    for (const CarryTensorSpec& tensor : unit.carry_out) {
      text += " " + std::to_string(tensor.elements_per_position) + (tensor.wide ? " wide" : "") +
              (tensor.wide_gradient ? " summed" : "") + (tensor.running ? " running" : "") +
              (tensor.passes ? " passes " + std::to_string(*tensor.passes) : "");
    }
  }
  return text;
}

}  // namespace longshore
