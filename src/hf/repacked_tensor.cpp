#include "hf/repacked_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/mxfp4.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "hf/tensor_dtype.h"

namespace longshore {
namespace {

constexpr int64_t kBlock = Fp8Layout::kBlock;
constexpr int64_t kGroup = Mxfp4Layout::kGroup;
constexpr int64_t kGroupBytes = Mxfp4Layout::kGroupBytes;
constexpr int64_t kTile = 16;  // a cache line of fp32 values

Fp8Scale scale_kind(TensorDType dtype, bool powers) {
  if (powers || width_of(dtype) == 1) return Fp8Scale::kPowerOfTwo;
  return dtype == TensorDType::kBF16 ? Fp8Scale::kBF16 : Fp8Scale::kF32;
}

// Writes a scale in the type of the files; encode_fp8_rows gave it a number of that type.
void store_scale(float scale, TensorDType dtype, std::span<std::byte> out) {
  if (dtype == TensorDType::kF32) {
    std::memcpy(out.data(), &scale, sizeof(scale));
  } else if (dtype == TensorDType::kBF16) {
    const uint16_t bits = float_to_bf16_nearest(scale);
    std::memcpy(out.data(), &bits, sizeof(bits));
  } else {
    out[0] = static_cast<std::byte>(std::ilogb(scale) + 127);
  }
}

std::vector<std::byte> read_bytes(const PackedTensor::Part& part, Bytes begin, Bytes count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  part.file->read(*part.tensor, begin, bytes);
  return bytes;
}

}  // namespace

void PackedChange::add(float trained, float base, float packed) {
  const double t = trained, b = base, p = packed;
  size += t * t;
  error += (p - t) * (p - t);
  change += (t - b) * (t - b);
  kept += (p - b) * (t - b);
}

void PackedChange::add(const PackedChange& other) {
  size += other.size;
  error += other.error;
  change += other.change;
  kept += other.kept;
}

double PackedChange::relative_error() const {
  return size > 0.0 ? std::sqrt(error / size) : 0.0;
}

double PackedChange::surviving() const {
  return change > 0.0 ? kept / change : 1.0;
}

double PackedChange::error_per_change() const {
  return error > 0.0 ? std::sqrt(error / change) : 0.0;
}

RepackedTensor::RepackedTensor(const PackedTensor& base, ReadValues trained, bool powers)
    : base_(base), trained_(std::move(trained)), powers_(powers) {}

std::vector<std::byte> RepackedTensor::pack(const WriteCodes& codes) {
  change_ = {};
  LONGSHORE_CHECK(base_.format() == PackedFormat::kFp8 || base_.format() == PackedFormat::kMxfp4)
      << base_.values().name << ": " << name_of(base_.format());
  return base_.format() == PackedFormat::kFp8 ? pack_fp8(codes) : pack_mxfp4(codes);
}

void RepackedTensor::read_trained(int64_t begin, std::span<float> out) const {
  trained_(begin, out);
  const auto bad = std::ranges::find_if(out, [](float value) { return !std::isfinite(value); });
  if (bad == out.end()) return;
  throw DataError("export: tensor '" + printable(base_.values().name) + "' holds " +
                  std::to_string(*bad) + " (element " +
                  std::to_string(begin + (bad - out.begin())) +
                  "), which its published form does not hold; longshore export with --format bf16 "
                  "and --allow-nonfinite writes it anyway");
}

void RepackedTensor::add_change(int64_t begin, float trained, float base, float packed) {
  if (!std::isfinite(packed)) {
    throw DataError("export: tensor '" + printable(base_.values().name) + "' holds " +
                    std::to_string(trained) + " (element " + std::to_string(begin) +
                    "), too large for its published form; export it with --format bf16");
  }
  change_.add(trained, base, packed);
}

// One row of blocks: trained values, the base's values, and both in packed form.
class RepackedTensor::Fp8Rows {
 public:
  // `matrix` is the layout of a matrix of the tensor.
  Fp8Rows(RepackedTensor& of, const Fp8Layout& matrix)
      : of_(of),
        columns_(matrix.columns()),
        blocks_(matrix.block_columns()),
        codes_(of.base_.parts().at(0)),
        scales_(of.base_.parts().at(1)),
        kind_(scale_kind(scales_.tensor->dtype, of.powers_)) {}

  // Packs `count` rows from the `first` row of the tensor on; `block_row` counts over all matrices.
  // Returns the bytes of the scales.
  std::vector<std::byte> pack(int64_t first, int64_t count, int64_t block_row,
                              const WriteCodes& write) {
    const auto elements = static_cast<size_t>(count * columns_);
    trained_.resize(elements);
    base_.resize(elements);
    packed_.resize(elements);
    of_.read_trained(first * columns_, trained_);
    of_.base_.read(first * columns_, base_);
    std::vector<float> scales(static_cast<size_t>(blocks_));
    encode_fp8_rows(trained_, columns_, kind_, scales, packed_);
    const std::vector<std::byte> old = read_bytes(codes_, first * columns_, count * columns_);
    const int64_t width = width_of(scales_.tensor->dtype);
    std::vector<std::byte> stored =
        read_bytes(scales_, block_row * blocks_ * width, blocks_ * width);
    for (int64_t block = 0; block < blocks_; ++block) {
      if (is_unchanged(block)) {
        keep_base(first, block, old);
        continue;
      }
      const float scale = scales[static_cast<size_t>(block)];
      store_scale(scale, scales_.tensor->dtype,
                  std::span(stored).subspan(static_cast<size_t>(block * width),
                                            static_cast<size_t>(width)));
      add_block(first, block, scale);
    }
    write(std::as_bytes(std::span(packed_)));
    return stored;
  }

 private:
  // Calls use(begin, count) for the elements of a block in each row.
  template <typename Use>
  void for_rows(int64_t block, const Use& use) const {
    const int64_t column = block * kBlock, width = std::min(kBlock, columns_ - column);
    for (int64_t at = column; at < std::ssize(trained_); at += columns_) {
      use(static_cast<size_t>(at), static_cast<size_t>(width));
    }
  }

  bool is_unchanged(int64_t block) const {
    bool same = true;
    for_rows(block, [&](size_t begin, size_t count) {
      same = same && std::ranges::equal(std::span(trained_).subspan(begin, count),
                                        std::span(base_).subspan(begin, count));
    });
    return same;
  }

  void keep_base(int64_t first, int64_t block, std::span<const std::byte> old) {
    for_rows(block, [&](size_t begin, size_t count) {
      std::memcpy(packed_.data() + begin, old.data() + begin, count);
      for (size_t i = begin; i < begin + count; ++i) {
        of_.add_change(first * columns_ + static_cast<int64_t>(i), trained_[i], base_[i], base_[i]);
      }
    });
  }

  void add_block(int64_t first, int64_t block, float scale) {
    std::vector<float> values(kBlock);
    for_rows(block, [&](size_t begin, size_t count) {
      decode_fp8_block(std::span(packed_).subspan(begin, count), scale,
                       std::span(values).first(count));
      for (size_t i = 0; i < count; ++i) {
        of_.add_change(first * columns_ + static_cast<int64_t>(begin + i), trained_[begin + i],
                       base_[begin + i], values[i]);
      }
    });
  }

  RepackedTensor& of_;
  int64_t columns_, blocks_;
  PackedTensor::Part codes_, scales_;
  Fp8Scale kind_;
  std::vector<float> trained_, base_;
  std::vector<uint8_t> packed_;
};

std::vector<std::byte> RepackedTensor::pack_fp8(const WriteCodes& codes) {
  const std::vector<int64_t>& shape = base_.values().shape;
  const Fp8Layout matrix(shape.at(shape.size() - 2), shape.back());
  const int64_t matrices = base_.values().elements() / matrix.elements();
  Fp8Rows rows(*this, matrix);
  std::vector<std::byte> scales;
  int64_t block_row = 0;
  for (int64_t i = 0; i < matrices; ++i) {
    for (int64_t row = 0; row < matrix.rows(); row += kBlock, ++block_row) {
      const std::vector<std::byte> bytes = rows.pack(
          i * matrix.rows() + row, std::min(kBlock, matrix.rows() - row), block_row, codes);
      scales.insert(scales.end(), bytes.begin(), bytes.end());
    }
  }
  return scales;
}

// One expert's matrix. Values are [inputs, outputs]; the files hold outputs one after the other.
class RepackedTensor::Mxfp4Expert {
 public:
  Mxfp4Expert(RepackedTensor& of, int64_t inputs, int64_t outputs)
      : of_(of), inputs_(inputs), outputs_(outputs) {}

  // Packs an expert and appends its scales to `scales`.
  void pack(int64_t expert, std::vector<std::byte>& scales, const WriteCodes& write) {
    begin_ = expert * inputs_ * outputs_;
    trained_.resize(static_cast<size_t>(inputs_ * outputs_));
    base_.resize(trained_.size());
    of_.read_trained(begin_, trained_);
    of_.base_.read(begin_, base_);
    const int64_t groups = outputs_ * (inputs_ / kGroup);
    const std::vector<PackedTensor::Part> parts = of_.base_.parts();
    std::vector<std::byte> codes =
        read_bytes(parts.at(0), expert * groups * kGroupBytes, groups * kGroupBytes);
    std::vector<std::byte> exponents = read_bytes(parts.at(1), expert * groups, groups);
    for (int64_t output = 0; output < outputs_; output += kTile) {
      const int64_t count = std::min(kTile, outputs_ - output);
      for (int64_t input = 0; input < inputs_; input += kGroup) {
        pack_tile(input, output, count, codes, exponents);
      }
    }
    write(codes);
    scales.insert(scales.end(), exponents.begin(), exponents.end());
  }

 private:
  // Packs the groups of `count` outputs that begin at this input.
  void pack_tile(int64_t input, int64_t output, int64_t count, std::span<std::byte> codes,
                 std::span<std::byte> exponents) {
    std::array<std::array<float, kGroup>, kTile> trained{}, base{};
    for (int64_t i = 0; i < kGroup; ++i) {
      const auto from = static_cast<size_t>((input + i) * outputs_ + output);
      for (size_t o = 0; o < static_cast<size_t>(count); ++o) {
        trained[o][static_cast<size_t>(i)] = trained_[from + o];
        base[o][static_cast<size_t>(i)] = base_[from + o];
      }
    }
    for (int64_t o = 0; o < count; ++o) {
      const int64_t group = (output + o) * (inputs_ / kGroup) + input / kGroup;
      const auto tile = static_cast<size_t>(o);
      if (trained[tile] == base[tile]) {
        add(input, output + o, trained[tile], base[tile], base[tile]);
        continue;
      }
      std::array<uint8_t, kGroupBytes> packed{};
      const uint8_t exponent = encode_mxfp4_group(trained[tile], packed);
      std::memcpy(codes.data() + group * kGroupBytes, packed.data(), packed.size());
      exponents[static_cast<size_t>(group)] = static_cast<std::byte>(exponent);
      std::array<float, kGroup> values{};
      decode_mxfp4(Mxfp4Layout(kGroup, 1),
                   {.first = 0, .count = 1, .blocks = packed.data(), .scales = &exponent}, 0,
                   values);
      add(input, output + o, trained[tile], base[tile], values);
    }
  }

  void add(int64_t input, int64_t output, std::span<const float> trained,
           std::span<const float> base, std::span<const float> packed) {
    for (size_t i = 0; i < packed.size(); ++i) {
      const int64_t element = begin_ + (input + static_cast<int64_t>(i)) * outputs_ + output;
      of_.add_change(element, trained[i], base[i], packed[i]);
    }
  }

  RepackedTensor& of_;
  int64_t inputs_, outputs_;
  int64_t begin_ = 0;  // the expert's first element
  std::vector<float> trained_, base_;
};

std::vector<std::byte> RepackedTensor::pack_mxfp4(const WriteCodes& codes) {
  const std::vector<int64_t>& shape = base_.values().shape;
  Mxfp4Expert expert(*this, shape.at(1), shape.at(2));
  std::vector<std::byte> scales;
  for (int64_t i = 0; i < shape.at(0); ++i) expert.pack(i, scales, codes);
  return scales;
}

}  // namespace longshore
