// packed_groups: reads values of packed matrices in groups of sixteen, to small pieces of fp32.
// Internal to src/kernels; included once for each instruction set, after cpu_vectors-inl.h. The
// values have the bits of unpack.h. Any thread.
#if defined(LONGSHORE_PACKED_GROUPS) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_PACKED_GROUPS
#undef LONGSHORE_PACKED_GROUPS
#else
#define LONGSHORE_PACKED_GROUPS
#endif

#include <algorithm>
#include <cstring>
#include <span>

#include "base/errors.h"
#include "base/fp8.h"
#include "base/mxfp4.h"
#include "base/nf4.h"
#include "kernels/cpu_vectors-inl.h"
#include "kernels/row_products.h"

HWY_BEFORE_NAMESPACE();
namespace longshore::kernels::HWY_NAMESPACE {

HWY_INLINE float float_at(const uint8_t* from) {
  float value = 0.0f;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The order of the two codes in a byte.
enum class Halves4 { kUpperFirst, kLowerFirst };

// Returns the numbers of the sixteen 4-bit codes in eight bytes.
template <Halves4 kOrder>
HWY_INLINE Group numbers_of(const float* table, const uint8_t* pairs) {
  Group out;
#if HWY_MAX_BYTES >= 32
  const hn::FixedTag<uint8_t, 8> eight;
  const hn::FixedTag<uint8_t, 16> sixteen;
  const auto both = hn::ZeroExtendVector(sixteen, hn::LoadU(eight, pairs));
  const auto upper = hn::ShiftRight<4>(both), lower = hn::And(both, hn::Set(sixteen, 15));
  const auto codes = kOrder == Halves4::kUpperFirst ? hn::InterleaveLower(sixteen, upper, lower)
                                                    : hn::InterleaveLower(sixteen, lower, upper);
#if HWY_MAX_BYTES >= 64
  const auto places = hn::IndicesFromVec(Floats(), hn::PromoteTo(Words(), codes));
  out.parts[0] = hn::TableLookupLanes(hn::LoadU(Floats(), table), places);
#else
  const auto first = hn::LoadU(Floats(), table), second = hn::LoadU(Floats(), table + kLanes);
  const auto look_up = [&](auto some) HWY_ATTR {
    const WordVector code = hn::PromoteTo(Words(), some);
    const auto places = hn::IndicesFromVec(Floats(), hn::And(code, hn::Set(Words(), 7u)));
    const auto is_first = hn::RebindMask(Floats(), hn::Lt(code, hn::Set(Words(), 8u)));
    return hn::IfThenElse(is_first, hn::TableLookupLanes(first, places),
                          hn::TableLookupLanes(second, places));
  };
  out.parts[0] = look_up(hn::LowerHalf(eight, codes));
  out.parts[1] = look_up(hn::UpperHalf(eight, codes));
#endif
#else
  float values[kGroup];
  for (int64_t i = 0; i < kGroup; i += 2) {
    const uint8_t pair = pairs[i / 2];
    const float upper = table[pair >> 4], lower = table[pair & 15];
    values[i] = kOrder == Halves4::kUpperFirst ? upper : lower;
    values[i + 1] = kOrder == Halves4::kUpperFirst ? lower : upper;
  }
  out = load(values);
#endif
  return out;
}

// Returns the numbers of sixteen codes in e4m3, none of them NaN.
HWY_INLINE Group e4m3_group(const uint8_t* codes) {
  const hn::Rebind<uint8_t, Floats> bytes;
  Group out;
  for (int64_t i = 0; i < kParts; ++i) {
    const WordVector code = hn::PromoteTo(Words(), hn::LoadU(bytes, codes + i * kLanes));
    const WordVector low = hn::And(code, hn::Set(Words(), 0x7fu));
    const WordVector sign = hn::ShiftLeft<24>(hn::Sub(code, low));
    // Exponents are 120 apart. A code without exponent is a multiple of 2^-9: it is read as a
    // number between 2^-6 and 2^-5, and 2^-6 is taken away.
    const WordVector bits = hn::ShiftLeft<20>(low);
    const auto number = hn::BitCast(Floats(), hn::Add(bits, hn::Set(Words(), 120u << 23)));
    const auto least = hn::Sub(hn::BitCast(Floats(), hn::Add(bits, hn::Set(Words(), 121u << 23))),
                               hn::Set(Floats(), 0.015625f));
    const auto small = hn::RebindMask(Floats(), hn::Lt(low, hn::Set(Words(), 8u)));
    const auto magnitude = hn::IfThenElse(small, least, number);
    out.parts[i] = hn::BitCast(Floats(), hn::Or(sign, hn::BitCast(Words(), magnitude)));
  }
  return out;
}

// Writes the layout's values from `begin` on, rounded to the matrix's dtype.
template <typename T>
HWY_INLINE void decode_values(const ProductMatrix& w, int64_t begin, int64_t count, T* out) {
  const int64_t rows = w.transposed ? w.inputs : w.outputs;
  const int64_t columns = w.transposed ? w.outputs : w.inputs;
  const std::array<int64_t, 2> shape{rows, columns};
  const std::span packed(static_cast<const std::byte*>(w.values),
                         static_cast<size_t>(packed_bytes(*w.packed, shape)));
  std::array<float, Nf4Layout::kBlock> values{};
  for (int64_t at = 0; at < count; at += std::ssize(values)) {
    const auto some = std::span(values).first(
        static_cast<size_t>(std::min<int64_t>(std::ssize(values), count - at)));
    decode_packed(*w.packed, shape, packed, begin + at, some);
    for (size_t i = 0; i < some.size(); ++i) {
      if (w.dtype == DType::kBF16) some[i] = kernels::rounded<Bf16>(some[i]);
      out[at + static_cast<int64_t>(i)] = rounded_to<T>(some[i]);
    }
  }
}

// The scale of each block of 64 values of a matrix in NF4.
struct Nf4Scales {
  explicit Nf4Scales(const ProductMatrix& w)
      : bytes(static_cast<const uint8_t*>(w.values)), layout(w.inputs * w.outputs) {
    packed = w.packed == PackedFormat::kNf4;
    codes = bytes + (packed ? layout.codes_begin() : Nf4F32Layout(layout.elements()).codes_begin());
  }
  float of(int64_t block) const {
    if (!packed) return float_at(bytes + 4 * block);
    const float largest =
        float_at(bytes + layout.largest_begin() + 4 * (block / Nf4Layout::kGroup));
    const float level = nf4_scale_levels()[bytes[layout.scales_begin() + block]];
    return level * largest + float_at(bytes);
  }

  const uint8_t* bytes;
  Nf4Layout layout;
  bool packed;  // the scales are codes, too
  const uint8_t* codes;
};

// V is the matrix's dtype; T is that of the piece, which can hold it.
template <typename V, typename T>
HWY_INLINE void unpack_nf4_inputs(const ProductMatrix& w, int64_t output, int64_t k, int64_t count,
                                  T* values) {
  const int64_t begin = output * w.inputs + k;
  if (begin % kGroup != 0 || count % kGroup != 0) {
    return decode_values(w, begin, count, values);
  }
  const Nf4Scales scales(w);
  Group scale = all(0.0f);
  for (int64_t i = 0; i < count; i += kGroup) {
    const int64_t at = begin + i;
    if (i == 0 || at % Nf4Layout::kBlock == 0) scale = all(scales.of(at / Nf4Layout::kBlock));
    const Group levels = numbers_of<Halves4::kUpperFirst>(kNf4Levels.data(), scales.codes + at / 2);
    store(rounded<V>(levels * scale), values + i);
  }
}

template <typename T>
HWY_INLINE void unpack_fp8_inputs(const ProductMatrix& w, int64_t output, int64_t k, int64_t count,
                                  T* values) {
  const Fp8Layout layout(w.outputs, w.inputs);
  const auto* const bytes = static_cast<const uint8_t*>(w.values);
  const uint8_t* const codes = bytes + layout.codes_begin() + output * w.inputs + k;
  const int64_t block = output / Fp8Layout::kBlock * layout.block_columns();
  const int64_t whole = count / kGroup * kGroup;
  for (int64_t i = 0; i < whole; i += kGroup) {
    const Group scale = all(float_at(bytes + 4 * (block + (k + i) / Fp8Layout::kBlock)));
    store(rounded<Bf16>(e4m3_group(codes + i) * scale), values + i);
  }
  if (whole == count) return;
  decode_values(w, output * w.inputs + k + whole, count - whole, values + whole);
}

template <typename T>
HWY_INLINE void unpack_mxfp4_inputs(const ProductMatrix& w, int64_t output, int64_t k,
                                    int64_t count, T* values) {
  const Mxfp4Layout layout(w.inputs, w.outputs);
  const auto* const bytes = static_cast<const uint8_t*>(w.values);
  for (int64_t i = 0; i < count; i += Mxfp4Layout::kGroup) {
    const int64_t at = output * layout.groups() + (k + i) / Mxfp4Layout::kGroup;
    const Group power = all(mxfp4_powers()[bytes[layout.scales_begin() + at]]);
    const uint8_t* const pairs = bytes + at * Mxfp4Layout::kGroupBytes;
    for (int64_t half = 0; half < 2; ++half) {
      const Group numbers =
          numbers_of<Halves4::kLowerFirst>(kMxfp4Numbers.data(), pairs + half * kGroup / 2);
      store(numbers * power, values + i + half * kGroup);
    }
  }
}

// Writes the values of `count` inputs of one output, from input k on, which is a multiple of a
// group, of a packed matrix whose inputs lie together.
template <typename T>
HWY_INLINE void unpack_inputs(const ProductMatrix& w, int64_t output, int64_t k, int64_t count,
                              T* values) {
  switch (*w.packed) {
    case PackedFormat::kFp8:
      return unpack_fp8_inputs(w, output, k, count, values);
    case PackedFormat::kMxfp4:
      return unpack_mxfp4_inputs(w, output, k, count, values);
    case PackedFormat::kNf4:
    case PackedFormat::kNf4F32:
      if (w.dtype == DType::kF32) return unpack_nf4_inputs<float, T>(w, output, k, count, values);
      return unpack_nf4_inputs<Bf16, T>(w, output, k, count, values);
  }
}

}  // namespace longshore::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
