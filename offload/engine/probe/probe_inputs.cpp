#include "offload/engine/probe/probe_inputs.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "offload/schedule/pass_plan.h"
#include "shard/flat_layout.h"

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
      work.matrix_elements += static_cast<double>(parameter.elements());
    }
  };
  for (const ParamSpec& parameter : unit.parameters) add(parameter);
  for (const ParamRef ref : unit.tied) add(spec.parameter(ref));
  UnitTraits traits =
      model.code_of(id).traits({.longest_document = longest_document, .device = device});
  work.matrix_elements += static_cast<double>(traits.activation_elements - traits.idle_elements);
  const auto widen = [&work](const std::vector<CarryTensorSpec>& carry) {
    for (const CarryTensorSpec& tensor : carry) {
      work.widest_carry =
          std::max(work.widest_carry, static_cast<double>(tensor.elements_per_position));
    }
  };
  widen(unit.carry_out);
  if (id.value > 0) widen(spec.unit(UnitId(id.value - 1)).carry_out);
  work.positions_at_once = traits.positions_at_once;
  work.documents = std::move(traits.documents);
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

namespace {

// Measurements that are kept have this text in their keys, so its words stay.
std::string text_of(const ParamSpec& parameter, DType compute) {
  const StoredMatrices stored = stored_matrices(parameter, compute);
  const bool wide = parameter.frozen && stored.type == StorageType::kF32 && compute != DType::kF32;
  std::string text = wide ? ", in halves" : parameter.frozen ? ", frozen" : ", trained";
  if (is_packed(stored.type)) {
    if (parameter.stacked) text += " " + std::to_string(stored.count);
    text += " " + std::to_string(stored.distance / width_of(compute));
  }
  const char* const before = is_packed(stored.type) ? " of " : " ";
  for (const int64_t dimension : parameter.shape) text += before + std::to_string(dimension);
  return text;
}

}  // namespace

std::string OneUnitModel::identity(DType compute) const {
  std::string text = model_.code_of(real_).traits({}).signature;
  if (text.empty()) return text;
  for (const UnitSpec& unit : spec_.units) {
    text += "\n" + std::to_string(unit.tied.size()) + " tied";
    for (const ParamSpec& parameter : unit.parameters) {
      text += text_of(parameter, compute);
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

namespace {

// Margins between probed and real inputs: other splits, and products of other sizes, for which a
// kernel may use other blocks.
constexpr double kMeasuredMargin = 0.02;
constexpr double kFittedMargin = 0.05;
constexpr Bytes kScratchMargin = 256 * kKiB;  // at most a quarter of the whole
constexpr Bytes kSmallTensors = 4 * kKiB;

Bytes most_of(const std::vector<Bytes>& phases) {
  return phases.empty() ? 0 : std::ranges::max(phases);
}

// Adds the margin of memory that holds no kernel scratch, such as a kept graph; 0 stays 0.
Bytes with_share(Bytes bytes, double share) {
  if (bytes == 0) return 0;
  return bytes + static_cast<Bytes>(std::ceil(static_cast<double>(bytes) * share)) + kSmallTensors;
}

Bytes with_margin(Bytes bytes, double share) {
  return with_share(bytes, share) + std::min(kScratchMargin, bytes / 4);
}

UnitCost larger_of(const UnitCost& a, const UnitCost& b) {
  return {.forward = std::max(a.forward, b.forward),
          .backward = std::max(a.backward, b.backward),
          .saved = std::max(a.saved, b.saved),
          .source = std::max(a.source, b.source)};
}

UnitCost margined(const UnitCost& cost, CostSource source) {
  const double share = source == CostSource::kMeasured ? kMeasuredMargin : kFittedMargin;
  return {.forward = with_margin(cost.forward, share),
          .backward = with_margin(cost.backward, share),
          .saved = with_share(cost.saved, share),
          .source = source};
}

UnitCost cost_of(const ProbeTrace& trace) {
  return {.forward = trace.forward, .backward = most_of(trace.backward), .saved = trace.saved};
}

}  // namespace

ProbeTrace larger_of(const ProbeTrace& a, const ProbeTrace& b) {
  ProbeTrace both = {.forward = std::max(a.forward, b.forward),
                     .saved = std::max(a.saved, b.saved),
                     .backward = {},
                     .too_large = a.too_large || b.too_large};
  if (a.backward.size() == b.backward.size()) {
    for (size_t i = 0; i < a.backward.size(); ++i) {
      both.backward.push_back(std::max(a.backward[i], b.backward[i]));
    }
  } else {
    both.backward = {std::max(most_of(a.backward), most_of(b.backward))};
  }
  return both;
}

LinearFit::LinearFit(std::span<const Point> points) {
  LONGSHORE_CHECK(!points.empty());
  bool grows = false;
  const auto slope = [](Bytes more, int64_t by) {
    return static_cast<double>(more) / static_cast<double>(by);
  };
  for (const Point& a : points) {
    for (const Point& b : points) {
      if (b.positions > a.positions && b.document == a.document) {
        per_position_ =
            std::max(per_position_, slope(b.bytes - a.bytes, b.positions - a.positions));
        grows = true;
      }
      if (b.positions == a.positions && b.document > a.document) {
        per_document_ = std::max(per_document_, slope(b.bytes - a.bytes, b.document - a.document));
      }
    }
  }
  // Without two comparable points all memory is taken to grow with positions.
  if (!grows) {
    for (const Point& point : points) {
      per_position_ = std::max(per_position_, slope(point.bytes, point.positions));
    }
  }
  for (const Point& point : points) {
    base_ = std::max(base_, static_cast<double>(point.bytes) -
                                per_position_ * static_cast<double>(point.positions) -
                                per_document_ * static_cast<double>(point.document));
  }
}

Bytes LinearFit::at(int64_t positions, int64_t document) const {
  return static_cast<Bytes>(std::ceil(base_ + per_position_ * static_cast<double>(positions) +
                                      per_document_ * static_cast<double>(document)));
}

WorkspaceFit::WorkspaceFit(UnitWork work, const MicroBatchShape& run,
                           std::vector<ProbeSample> samples)
    : work_(std::move(work)), run_(run) {
  for (int32_t kind = 0; kind < static_cast<int32_t>(work_.documents.size()); ++kind) {
    std::vector<ProbeSample> own;
    for (const ProbeSample& sample : samples) {
      if (sample.input.kind == kind) own.push_back(sample);
    }
    if (own.empty()) continue;  // no input of this kind could run
    kinds_.push_back(fit_kind(own));
  }
  LONGSHORE_CHECK(!kinds_.empty());
}

UnitCost WorkspaceFit::at(const MicroBatchShape& shape) const {
  UnitCost cost;
  for (const Kind& kind : kinds_) cost = larger_of(cost, cost_at(kind, shape));
  return cost;
}

UnitCost WorkspaceFit::cost_at(const Kind& kind, const MicroBatchShape& shape) const {
  const bool within =
      shape.positions <= run_.positions && shape.longest_document <= run_.longest_document;
  const int64_t document = document_of(work_, kind.kind, shape);
  UnitCost cost = {.forward = kind.forward.at(shape.positions, document),
                   .saved = kind.saved.at(shape.positions, document)};
  for (const LinearFit& phase : kind.backward) {
    cost.backward = std::max(cost.backward, phase.at(shape.positions, document));
  }
  cost = margined(cost, CostSource::kFitted);
  if (!kind.whole.empty() && within) {
    const UnitCost measured = margined(cost_of(kind.whole.front()), CostSource::kMeasured);
    // No smaller micro-batch needs more than the run's own shape, which was measured.
    if (shape == run_) cost = measured;
    cost.forward = std::min(cost.forward, measured.forward);
    cost.backward = std::min(cost.backward, measured.backward);
    cost.saved = std::min(cost.saved, measured.saved);
  }
  for (const ProbeSample& sample : kind.too_large) {
    if (shape.positions < sample.input.positions || document < sample.input.document) continue;
    UnitCost most = cost_of(sample.trace);
    most.source = CostSource::kTooLarge;
    cost = larger_of(cost, most);
  }
  return cost;
}

WorkspaceFit::Kind WorkspaceFit::fit_kind(std::span<const ProbeSample> all) const {
  std::vector<ProbeSample> samples, too_large;
  for (const ProbeSample& sample : all) {
    (sample.trace.too_large ? too_large : samples).push_back(sample);
  }
  if (samples.empty()) samples = too_large;  // no smaller sample exists
  const auto points = [&](const auto& bytes) {
    std::vector<LinearFit::Point> list;
    for (const ProbeSample& sample : samples) {
      list.push_back({sample.input.positions, sample.input.document, bytes(sample.trace)});
    }
    return LinearFit(list);
  };
  Kind kind{.kind = samples.front().input.kind,
            .forward = points([](const ProbeTrace& trace) { return trace.forward; }),
            .saved = points([](const ProbeTrace& trace) { return trace.saved; }),
            .backward = {},
            .whole = {},
            .too_large = std::move(too_large)};
  const size_t phases = samples.front().trace.backward.size();
  const bool alike = std::ranges::all_of(
      samples, [&](const ProbeSample& sample) { return sample.trace.backward.size() == phases; });
  if (!alike) {
    kind.backward.push_back(
        points([](const ProbeTrace& trace) { return most_of(trace.backward); }));
  }
  for (size_t phase = 0; alike && phase < phases; ++phase) {
    kind.backward.push_back(
        points([phase](const ProbeTrace& trace) { return trace.backward[phase]; }));
  }
  for (const ProbeSample& sample : samples) {
    const ProbeInput& input = sample.input;
    if (input.positions == run_.positions &&
        input.document == document_of(work_, input.kind, run_)) {
      kind.whole = {sample.trace};
    }
  }
  return kind;
}

}  // namespace longshore
