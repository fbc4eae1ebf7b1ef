#include "model/units/input_dropout.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/hash.h"
#include "device/gpu_tensors.h"
#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

constexpr int64_t kColumnsPerWord = 4;
constexpr int64_t kSteps = int64_t{1} << 16;  // of a share
// On a GPU a piece of rows has this many times the words, because each operation has to be started.
constexpr int64_t kGpuPieces = 4;

// The increment and the two factors of SplitMix64.
constexpr auto kIncrement = static_cast<int64_t>(0x9E3779B97F4A7C15u);
constexpr auto kFirstFactor = static_cast<int64_t>(0xBF58476D1CE4E5B9u);
constexpr auto kSecondFactor = static_cast<int64_t>(0x94D049BB133111EBu);

// Overwrites words with word ^ (word >> bits), where zeros are shifted in. LibTorch shifts in the
// sign, so the bits that it brings are cleared.
void fold(const at::Tensor& words, at::Tensor& scratch, int bits) {
  at::bitwise_right_shift_out(scratch, words, at::Scalar(int64_t{bits}));
  scratch.bitwise_and_(at::Scalar((int64_t{1} << (64 - bits)) - 1));
  words.bitwise_xor_(scratch);
}

// Overwrites states of SplitMix64 with its results.
void mix(const at::Tensor& words) {
  at::Tensor scratch = at::empty_like(words);
  fold(words, scratch, 30);
  words.mul_(at::Scalar(kFirstFactor));
  fold(words, scratch, 27);
  words.mul_(at::Scalar(kSecondFactor));
  fold(words, scratch, 31);
}

}  // namespace

int64_t InputDropout::stream_of(std::string_view name) {
  return static_cast<int64_t>(hash64(name));
}

void InputDropout::apply(const at::Tensor& values) const {
  if (!drops()) return;
  LONGSHORE_CHECK(values.dim() == 2 && values.size(0) == keys.size(0))
      << "keys of other positions: " << keys.size(0);
  const int64_t columns = values.size(1);
  const int64_t words = (columns + kColumnsPerWord - 1) / kColumnsPerWord;
  const auto nearest = static_cast<int64_t>(std::llround(share * static_cast<double>(kSteps)));
  const int64_t dropped = std::clamp<int64_t>(nearest, 1, kSteps - 1);
  const double scale = static_cast<double>(kSteps) / static_cast<double>(kSteps - dropped);
  const at::Tensor rows_of_keys = keys.bitwise_xor(at::Scalar(stream));
  mix(rows_of_keys);
  const at::Tensor starts = rows_of_keys.unsqueeze(1);
  const at::Tensor counters = at::arange(1, words + 1, keys.options()).mul_(at::Scalar(kIncrement));
  const int64_t row_elements = on_gpu(values) ? std::max<int64_t>(1, words / kGpuPieces) : words;
  for_pieces(values.size(0), row_elements, [&](int64_t begin, int64_t rows) {
    at::Tensor bits = at::empty({rows, words}, keys.options());
    mix(at::add_out(bits, starts.narrow(0, begin, rows), counters));
    // 16 bits are a number from -2^15, which is below the limit with the probability `share`.
    const at::Tensor mask = bits.view(at::kShort).narrow(1, 0, columns).lt(dropped - kSteps / 2);
    values.narrow(0, begin, rows).mul_(scale).masked_fill_(mask, 0.0);
  });
}

at::Tensor InputDropout::applied(const at::Tensor& values) const {
  at::Tensor kept = values.clone();
  apply(kept);
  return kept;
}

}  // namespace longshore
