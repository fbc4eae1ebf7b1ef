#include "offload/engine/carry_store.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "offload/engine/unit_runner.h"

namespace longshore {
namespace {

constexpr int32_t kNobody = -1;
constexpr Bytes kNotKept = -1;

const std::byte* begin_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return begin_of(a) < begin_of(b) + b.nbytes() && begin_of(b) < begin_of(a) + a.nbytes();
}

// Copies the carry to its slots. A unit may return tensors that it was given: those already in
// their slot stay, and those that overlap another slot are cloned before any slot is written.
void copy_all(Carry from, const Carry& to) {
  LONGSHORE_CHECK(from.size() == to.size()) << from.size() << " tensors, expected " << to.size();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].defined()) continue;  // no gradient flows back
    LONGSHORE_CHECK(from[i].sizes() == to[i].sizes())
        << "carry tensor " << i << " has shape " << from[i].sizes() << ", the plan says "
        << to[i].sizes();
    const bool in_place = begin_of(from[i]) == begin_of(to[i]) &&
                          from[i].scalar_type() == to[i].scalar_type() && from[i].is_contiguous();
    if (in_place) continue;
    if (std::ranges::any_of(to, [&](const at::Tensor& place) { return overlap(from[i], place); })) {
      from[i] = from[i].clone();
    }
  }
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].defined()) {
      to[i].zero_();
    } else if (begin_of(from[i]) != begin_of(to[i])) {
      to[i].copy_(from[i]);
    }
  }
}

}  // namespace

CarryStore::CarryStore(const ModelSpec& spec, DType dtype, Memory memory, at::Device device)
    : spec_(&spec),
      runs_(spec, memory.results),
      dtype_(dtype),
      device_(device),
      memory_(std::move(memory)),
      offsets_(spec.units.size()),
      result_offsets_(spec.units.size()) {
  LONGSHORE_CHECK(memory_.inputs.size() + 1 == spec.units.size()) << memory_.inputs.size();
  for (size_t unit = 1; unit < spec.units.size(); ++unit) {
    std::vector<Offsets>& offsets = offsets_[unit];
    offsets.resize(spec.units[unit - 1].carry_out.size());
    Bytes gradient = 0, running = 0;
    for (const bool fp32 : {true, false}) {
      for (size_t i = 0; i < offsets.size(); ++i) {
        const CarryTensorSpec& tensor = spec.units[unit - 1].carry_out[i];
        if ((tensor.dtype(dtype_, CarryUse::kGradient) == DType::kF32) == fp32) {
          offsets[i].gradient = gradient;
          gradient += tensor.bytes_per_position(dtype_, CarryUse::kGradient);
        }
        if (tensor.running && (tensor.dtype(dtype_, CarryUse::kValue) == DType::kF32) == fp32) {
          offsets[i].value = running;
          running += tensor.bytes_per_position(dtype_, CarryUse::kValue);
        }
      }
    }
  }
  const Bytes residents = lay_out_inputs(UnitId(1), spec.units.back().id, /*resident=*/true);
  LONGSHORE_CHECK(residents == resident_bytes_per_position(spec, dtype_)) << residents;
  for (const SharedInputGroup& run : runs_.all()) {
    lay_out(run);
    tags_[place(run.first, 0).data()] = kNobody;
  }
}

// Puts fp32 tensors first, so each begins at a multiple of its width for any position count.
Bytes CarryStore::lay_out_inputs(UnitId first, UnitId last, bool resident) {
  Bytes end = 0;
  for (const bool fp32 : {true, false}) {
    for (int32_t unit = first.value; unit <= last.value; ++unit) {
      const std::vector<CarryTensorSpec>& tensors = specs(UnitId(unit));
      for (size_t i = 0; i < tensors.size(); ++i) {
        const CarryTensorSpec& tensor = tensors[i];
        const bool now = (tensor.dtype(dtype_, CarryUse::kValue) == DType::kF32) == fp32;
        if (!now || tensor.running || tensor.resident != resident) continue;
        Bytes& offset = offsets_[static_cast<size_t>(unit)][i].value;
        if (tensor.passes) {
          const std::vector<Offsets>& before = offsets_[static_cast<size_t>(unit) - 1];
          offset = before.at(static_cast<size_t>(*tensor.passes)).value;
        } else {
          offset = end;
          end += tensor.bytes_per_position(dtype_, CarryUse::kValue);
        }
      }
    }
  }
  return end;
}

void CarryStore::lay_out(const SharedInputGroup& run) {
  Bytes end = lay_out_inputs(run.first, run.last, /*resident=*/false);
  for (int32_t unit = run.first.value; run.keeps_results() && unit <= run.last.value; ++unit) {
    std::vector<Bytes>& offsets = result_offsets_[static_cast<size_t>(unit)];
    for (const CarryTensorSpec& tensor : spec_->unit(UnitId(unit)).results) {
      if (!run.keeps(tensor)) {
        offsets.push_back(kNotKept);
        continue;
      }
      offsets.push_back(end = align_up(end, kResultAlignment));
      end += tensor.bytes_per_position(dtype_, CarryUse::kValue);
    }
  }
  LONGSHORE_CHECK(end == kept_bytes_per_position(*spec_, run, dtype_)) << end;
}

const std::vector<CarryTensorSpec>& CarryStore::specs(UnitId unit) const {
  return spec_->unit(UnitId(unit.value - 1)).carry_out;
}

std::span<std::byte> CarryStore::place(UnitId unit, int32_t micro_batch) const {
  const SharedInputGroup* const run = runs_.of(unit);
  if (run == nullptr) return {};
  return memory_.inputs.at(static_cast<size_t>(run->first.value - 1))
      .at(static_cast<size_t>(micro_batch));
}

std::span<std::byte> CarryStore::memory_of(UnitId unit, const CarryTensorSpec& tensor,
                                           int32_t micro_batch) const {
  if (tensor.running) return memory_.gradients.at(static_cast<size_t>(micro_batch));
  if (tensor.resident) return memory_.residents.at(static_cast<size_t>(micro_batch));
  return place(unit, micro_batch);
}

std::atomic<int32_t>* CarryStore::tag(UnitId unit) const {
  return runs_.of(unit) == nullptr ? nullptr : &tags_.at(place(unit, 0).data());
}

void CarryStore::check_tag(UnitId unit) const {
  const std::atomic<int32_t>* const held = tag(unit);
  LONGSHORE_CHECK(held == nullptr || *held == runs_.of(unit)->first.value)
      << "the slot of unit " << unit << "'s input holds that of unit " << *held;
}

at::Tensor CarryStore::view(const CarryTensorSpec& tensor, CarryUse use,
                            std::span<std::byte> memory, Bytes offset, int64_t positions) const {
  const Bytes end = positions * (offset + tensor.bytes_per_position(dtype_, use));
  LONGSHORE_CHECK(end <= static_cast<Bytes>(memory.size()))
      << positions << " positions do not fit the planned carry: " << end << " of " << memory.size()
      << " bytes";
  return tensor_over(memory.data() + positions * offset, {positions, tensor.elements_per_position},
                     scalar_type_of(tensor.dtype(dtype_, use)), device_);
}

at::Tensor CarryStore::value(UnitId unit, size_t tensor, int32_t micro_batch,
                             int64_t positions) const {
  const CarryTensorSpec& spec = specs(unit)[tensor];
  return view(spec, CarryUse::kValue, memory_of(unit, spec, micro_batch),
              offsets_[static_cast<size_t>(unit.value)][tensor].value, positions);
}

Carry CarryStore::input(UnitId unit, int32_t micro_batch, int64_t positions) const {
  if (unit.value == 0) return {};
  check_tag(unit);
  Carry carry;
  for (size_t i = 0; i < specs(unit).size(); ++i) {
    carry.push_back(value(unit, i, micro_batch, positions));
  }
  return carry;
}

std::vector<at::Tensor> CarryStore::results(UnitId unit, int32_t micro_batch,
                                            int64_t positions) const {
  const std::vector<Bytes>& offsets = result_offsets_[static_cast<size_t>(unit.value)];
  if (offsets.empty()) return {};
  check_tag(unit);
  std::vector<at::Tensor> places(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] == kNotKept) continue;
    places[i] = view(spec_->unit(unit).results[i], CarryUse::kValue, place(unit, micro_batch),
                     offsets[i], positions);
  }
  return places;
}

Carry CarryStore::activation_checkpoint(UnitId unit, int32_t micro_batch, int64_t positions) const {
  Carry carry = input(unit, micro_batch, positions);
  for (size_t i = 0; i < carry.size(); ++i) {
    if (specs(unit)[i].running) {
      carry[i] = at::zeros({1, 1}, carry[i].options()).expand(carry[i].sizes());
    }
  }
  return carry;
}

void CarryStore::overwrite_running(UnitId unit, const Carry& in) const {
  for (size_t i = 0; i < in.size(); ++i) {
    if (specs(unit)[i].running) torch::autograd::impl::bump_version(in[i]);
  }
}

void CarryStore::keep_input(UnitId unit, int32_t micro_batch, const Carry& carry) {
  const int64_t positions = carry.empty() ? 0 : carry.front().size(0);
  if (runs_.names(unit)) *tag(unit) = unit.value;
  const Carry places = input(unit, micro_batch, positions);
  for (size_t i = 0; i < std::min(carry.size(), places.size()); ++i) {
    LONGSHORE_CHECK(!specs(unit)[i].passes || begin_of(carry[i]) == begin_of(places[i]))
        << "unit " << spec_->unit(UnitId(unit.value - 1)).name << " says that carry tensor " << i
        << " passes tensor " << *specs(unit)[i].passes
        << " of its input, and returned another tensor: return that one itself, or declare none";
  }
  copy_all(carry, places);
}

std::span<const std::byte> CarryStore::saved_bytes(UnitId unit, int32_t micro_batch) const {
  check_tag(unit);
  return place(unit, micro_batch);
}

std::span<std::byte> CarryStore::loaded_bytes(UnitId unit, int32_t micro_batch) {
  if (std::atomic<int32_t>* const held = tag(unit)) *held = runs_.of(unit)->first.value;
  return place(unit, micro_batch);
}

void CarryStore::keep_gradient(UnitId unit, int32_t micro_batch, const Carry& gradient) {
  const auto known = std::ranges::find_if(gradient, &at::Tensor::defined);
  LONGSHORE_CHECK(known != gradient.end()) << "no gradient flows into unit " << unit;
  const int64_t positions = known->size(0);
  copy_all(gradient, gradient_out(UnitId(unit.value - 1), micro_batch, positions));
}

Carry CarryStore::gradient_out(UnitId unit, int32_t micro_batch, int64_t positions) const {
  const UnitId reader(unit.value + 1);
  Carry carry;
  for (size_t i = 0; i < specs(reader).size(); ++i) {
    carry.push_back(view(specs(reader)[i], CarryUse::kGradient,
                         memory_.gradients.at(static_cast<size_t>(micro_batch)),
                         offsets_[static_cast<size_t>(reader.value)][i].gradient, positions));
  }
  return carry;
}

void InputOffload::save(UnitId unit, std::optional<StagingSlot> staging, const CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> host = tier_->places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<std::byte> place = host.at(static_cast<size_t>(i));
    copies_->to_host(place, carry.saved_bytes(unit, i).first(place.size()));
  }
  copies_->finish();
}

void InputOffload::load(UnitId unit, std::optional<StagingSlot> staging, CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> host = tier_->places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<const std::byte> place = host.at(static_cast<size_t>(i));
    copies_->to_device(carry.loaded_bytes(unit, i).first(place.size()), place);
  }
  copies_->finish();
}

}  // namespace longshore
