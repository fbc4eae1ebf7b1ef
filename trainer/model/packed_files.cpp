#include "trainer/model/packed_files.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {
namespace {

// Calls read(matrix, begin inside it, part of `out`) for the matrices that a range lies in, each of
// `length` items.
template <typename T, typename Read>
void for_matrices(int64_t begin, int64_t length, std::span<T> out, const Read& read) {
  while (!out.empty()) {
    const int64_t inside = begin % length;
    const size_t count = std::min(out.size(), static_cast<size_t>(length - inside));
    read(begin / length, inside, out.first(count));
    out = out.subspan(count);
    begin += length - inside;
  }
}

}  // namespace

PackedFiles::PackedFiles(const ModelSpec& model, DType compute, const ModelFiles* files,
                         const WeightLoader* weights)
    : files_(files), weights_(weights) {
  take_parameters(model, compute);
}

PackedFiles::PackedFiles(const ModelSpec& model, DType compute, const RandomBase* random)
    : random_(random) {
  take_parameters(model, compute);
}

void PackedFiles::take_parameters(const ModelSpec& model, DType compute) {
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.packed) continue;
      const PackedTensor* const tensor =
          weights_ == nullptr ? nullptr : weights_->at(parameter.name).packed;
      parameters_.emplace(
          parameter.name,
          Parameter{
              .shape = {parameter.shape.end() - 2, parameter.shape.end()},
              .stored = stored_matrices(parameter, compute),
              .published = tensor != nullptr && storage_of(tensor->format()) == *parameter.packed});
    }
  }
}

std::shared_ptr<PackedFiles::Packed> PackedFiles::entry(const MatrixId& id) const {
  const MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(kept_, id, [](const auto& kept) -> const MatrixId& { return kept.first; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.emplace_front(id, std::make_shared<Packed>());
    held_ += parameters_.at(id.first).stored.bytes;
    while (kept_.size() > kKept && held_ > kHeldBytes) {
      held_ -= parameters_.at(kept_.back().first.first).stored.bytes;
      kept_.pop_back();
    }
  }
  return kept_.front().second;
}

template <typename Chosen>
void PackedFiles::forget(const Chosen& chosen) const {
  const MutexLock lock(mutex_);
  Bytes freed = 0;
  std::erase_if(kept_, [&](const auto& kept) {
    const bool goes = chosen(kept.first);
    if (goes) freed += parameters_.at(kept.first.first).stored.bytes;
    return goes;
  });
  held_ -= freed;
}

void PackedFiles::release(const std::string& name) const {
  forget([&](const MatrixId& id) { return id.first == name; });
}

void PackedFiles::read_unpacked(const std::string& name, int64_t begin,
                                std::span<float> out) const {
  if (random_ != nullptr) {
    random_->read_values(name, begin, out);
  } else {
    weights_->read_parameter(name, begin, out);
  }
}

std::span<const std::byte> PackedFiles::bytes_of(const MatrixId& id, Packed& packed) const {
  if (!packed.bytes.empty()) return packed.bytes;
  const auto& [name, matrix] = id;
  const Parameter& parameter = parameters_.at(name);
  std::vector<std::byte> bytes(static_cast<size_t>(parameter.stored.bytes));
  // Files in another packed format may hold the transpose, of which each piece would read all.
  std::vector<float> whole;
  if (weights_ != nullptr && weights_->at(name).packed != nullptr) {
    whole.resize(static_cast<size_t>(parameter.values()));
    weights_->read_parameter(name, matrix * parameter.values(), whole);
  }
  const auto read_finite = [&](int64_t begin, std::span<float> out) {
    if (whole.empty()) {
      read_unpacked(name, matrix * parameter.values() + begin, out);
    } else {
      std::ranges::copy(std::span(whole).subspan(static_cast<size_t>(begin), out.size()),
                        out.begin());
    }
    if (!std::ranges::all_of(out, [](float value) { return std::isfinite(value); })) {
      throw DataError(place_of(name) +
                      ": has values that are not finite (NaN or infinite), "
                      "which cannot be packed; copy the model again from an intact source");
    }
  };
  encode_packed(parameter.format(), parameter.shape, read_finite, bytes);
  packed.bytes = std::move(bytes);
  return packed.bytes;
}

void PackedFiles::read_matrix(const MatrixId& id, Bytes begin, std::span<std::byte> out) const {
  const Parameter& parameter = parameters_.at(id.first);
  const Bytes left = std::max<Bytes>(parameter.stored.bytes - begin, 0);
  const std::span<std::byte> part = out.first(std::min(out.size(), static_cast<size_t>(left)));
  std::ranges::fill(out.subspan(part.size()), std::byte{0});
  if (part.empty()) return;
  if (parameter.published) {
    files_->read_packed(id.first, id.second, begin, part);
    return;
  }
  const std::shared_ptr<Packed> packed = entry(id);
  const MutexLock lock(packed->packing);
  const std::span<const std::byte> bytes = bytes_of(id, *packed);
  std::ranges::copy(bytes.subspan(static_cast<size_t>(begin), part.size()), part.begin());
  packed->read += part.size();
  if (packed->read >= bytes.size()) {
    forget([&](const MatrixId& other) { return other == id; });
  }
}

Bytes PackedFiles::read(const std::string& name, StorageType type, Bytes begin,
                        std::span<std::byte> out) const {
  if (!has(name)) return plain().read(name, type, begin, out);
  LONGSHORE_CHECK(parameters_.at(name).stored.type == type) << name;
  read_packed(name, begin, out);
  return static_cast<Bytes>(out.size());
}

void PackedFiles::read_packed(const std::string& name, Bytes begin,
                              std::span<std::byte> out) const {
  for_matrices(begin, parameters_.at(name).stored.distance, out,
               [&](int64_t matrix, Bytes inside, std::span<std::byte> part) {
                 read_matrix({name, matrix}, inside, part);
               });
}

void PackedFiles::read_values(const std::string& name, int64_t begin, std::span<float> out) const {
  const Parameter& parameter = parameters_.at(name);
  if (parameter.published) {
    weights_->read_parameter(name, begin, out);
    return;
  }
  for_matrices(
      begin, parameter.values(), out, [&](int64_t matrix, int64_t inside, std::span<float> part) {
        const MatrixId id{name, matrix};
        const std::shared_ptr<Packed> packed = entry(id);
        const MutexLock lock(packed->packing);
        decode_packed(parameter.format(), parameter.shape, bytes_of(id, *packed), inside, part);
      });
}

}  // namespace longshore
