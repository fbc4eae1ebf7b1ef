#include "trainer/model/packed_files.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/errors.h"
#include "hf/fp8_tensor.h"

namespace longshore {

PackedFiles::PackedFiles(const ModelSpec& model, PackedFormat format, const FrozenSource* files,
                         const WeightLoader* weights)
    : format_(format), files_(files), weights_(weights) {
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.unpacked.empty()) shapes_.emplace(parameter.name, parameter.unpacked);
    }
  }
}

std::shared_ptr<PackedFiles::Packed> PackedFiles::entry(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(
      kept_, name, [](const auto& kept) -> const std::string& { return kept.first; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.emplace_front(name, std::make_shared<Packed>());
    if (kept_.size() > kKept) kept_.pop_back();
  }
  return kept_.front().second;
}

std::span<const std::byte> PackedFiles::bytes_of(const std::string& name, Packed& packed) const {
  if (!packed.bytes.empty()) return packed.bytes;
  const std::vector<int64_t>& shape = shapes_.at(name);
  std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(format_, shape)));
  const auto* const stored = dynamic_cast<const Fp8Tensor*>(weights_->at(name).packed);
  const auto read_finite = [&](int64_t begin, std::span<float> out) {
    weights_->read_parameter(name, begin, out);
    if (!std::ranges::all_of(out, [](float value) { return std::isfinite(value); })) {
      throw DataError(place_of(name) +
                      ": has values that are not finite (NaN or infinite), "
                      "which cannot be packed; copy the model again from an intact source");
    }
  };
  if (stored != nullptr && format_ == PackedFormat::kFp8) {
    stored->read_packed(bytes);
  } else {
    encode_packed(format_, shape, read_finite, bytes);
  }
  packed.bytes = std::move(bytes);
  return packed.bytes;
}

Bytes PackedFiles::read(const std::string& name, int64_t begin, DType compute,
                        std::span<std::byte> out) const {
  if (!has(name)) return files_->read(name, begin, compute, out);
  const std::shared_ptr<Packed> packed = entry(name);
  const MutexLock lock(packed->packing);
  const std::span<const std::byte> bytes = bytes_of(name, *packed);
  const auto first = static_cast<size_t>(begin * width_of(compute));
  LONGSHORE_CHECK(first <= bytes.size()) << name;
  // The last element may end behind the packed bytes.
  const size_t count = std::min(out.size(), bytes.size() - first);
  std::ranges::copy(bytes.subspan(first, count), out.begin());
  std::ranges::fill(out.subspan(count), std::byte{0});
  return static_cast<Bytes>(out.size());
}

void PackedFiles::read_values(const std::string& name, int64_t begin, std::span<float> out) const {
  const std::shared_ptr<Packed> packed = entry(name);
  const MutexLock lock(packed->packing);
  decode_packed(format_, shapes_.at(name), bytes_of(name, *packed), begin, out);
}

}  // namespace longshore
