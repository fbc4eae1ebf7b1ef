#include "trainer/model/model_files.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "trainer/model/values_in_parts.h"

namespace longshore {
namespace {

void to_floats(DType stored, std::span<const std::byte> bytes, std::span<float> values) {
  if (stored == DType::kF32) {
    std::ranges::copy(as_span<float>(bytes), values.begin());
    return;
  }
  const auto convert = stored == DType::kBF16 ? &bf16_to_float : &fp16_to_float;
  std::ranges::transform(as_span<uint16_t>(bytes), values.begin(), convert);
}

void read_converted(const ModelDirectory::TensorRef& ref, const DirectReader& reader, DType stored,
                    int64_t begin, StorageType type, std::span<std::byte> out) {
  const Bytes width = width_of(stored);
  std::vector<std::byte> bytes;
  store_in_parts(type, begin, out, [&](int64_t first, std::span<float> values) {
    bytes.resize(values.size() * static_cast<size_t>(width));
    ref.file->file.read(*ref.tensor, first * width, bytes, reader);
    to_floats(stored, bytes, values);
  });
}

// Reads values that the files hold in fewer bits; these reads leave their pages in the cache.
void read_values_of(const PackedTensor& tensor, int64_t begin, StorageType type,
                    std::span<std::byte> out) {
  store_in_parts(type, begin, out,
                 [&](int64_t first, std::span<float> values) { tensor.read(first, values); });
}

}  // namespace

ModelFiles::ModelFiles(const ModelDirectory& directory, const WeightLoader* weights)
    : weights_(weights) {
  for (const auto& file : directory.files()) {
    readers_.emplace(&file->file, file->file.past_cache());
  }
}

template <typename Read>
void ModelFiles::reading(const std::string& name, const Read& read) const {
  try {
    read();
  } catch (const IoError& error) {
    throw DataError(place_of(name) + ": cannot be read: " + error.what() +
                    "; restore the file, and start the run again from its last checkpoint");
  }
}

void ModelFiles::check_unchanged(const std::string& name, const SafetensorsFile& file) const {
  if (file.unchanged()) return;
  throw DataError(place_of(name) +
                  ": the file changed since the run opened it, and a frozen model must stay as it "
                  "is; restore it, and start the run again from its last checkpoint");
}

Bytes ModelFiles::read(const std::string& name, StorageType type, Bytes begin,
                       std::span<std::byte> out) const {
  const ModelDirectory::TensorRef ref = weights_->at(name);
  const SafetensorsFile& file = ref.file->file;
  const DirectReader& reader = readers_.at(&file);
  const DType stored = weights_->stored_dtype(name);
  const Bytes width = width_of(number_of(type));
  const int64_t first = begin / width;
  reading(name, [&] {
    if (ref.packed != nullptr) {
      read_values_of(*ref.packed, first, type, out);
    } else if (stored == number_of(type)) {
      file.read(*ref.tensor, begin, out, reader);
    } else {
      read_converted(ref, reader, stored, first, type, out);
    }
    check_unchanged(name, file);
  });
  return static_cast<Bytes>(out.size()) / width * width_of(stored);
}

void ModelFiles::read_packed(const std::string& name, int64_t matrix, Bytes begin,
                             std::span<std::byte> out) const {
  reading(name, [&] {
    weights_->at(name).packed->read_packed(
        matrix, begin, out,
        [&](const PackedTensor::Part& part, Bytes first, std::span<std::byte> bytes) {
          part.file->read(*part.tensor, first, bytes, readers_.at(part.file));
          check_unchanged(name, *part.file);
        });
  });
}

std::string ModelFiles::place_of(const std::string& name) const {
  return weights_->at(name).file->file.path() + ": tensor '" + printable(name) + "'";
}

}  // namespace longshore
