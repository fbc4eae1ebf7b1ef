#include "base/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kBlock = Nf4Layout::kBlock;
constexpr int64_t kGroup = Nf4Layout::kGroup;
constexpr int64_t kPiece = kBlock << 10;  // values that are read at a time
// Below this a block counts as zeros.
constexpr float kLeastScale = 1e-38F;

// The positive levels of scales below 1: for i from 0 to 6, the middles of 2^i equal parts of
// [0.1, 1], times 10^(i - 6), as fp32 gives them ("dynamic" 8-bit quantisation, arXiv:1511.04561).
constexpr std::array<float, 127> kPositive = {
    5.50000038e-07F, 3.25000019e-06F, 7.7499999e-06F,  2.12499981e-05F, 4.37499984e-05F,
    6.62500024e-05F, 8.87499991e-05F, 0.000156250011F, 0.000268750038F, 0.000381250022F,
    0.000493750034F, 0.000606250076F, 0.00071875006F,  0.000831249985F, 0.000943750085F,
    0.00128124992F,  0.00184375001F,  0.00240624999F,  0.00296874996F,  0.00353124971F,
    0.00409374991F,  0.00465624966F,  0.00521875033F,  0.00578125007F,  0.00634374982F,
    0.00690625003F,  0.00746874977F,  0.00803124998F,  0.00859375019F,  0.00915624946F,
    0.00971874967F,  0.0114062503F,   0.0142187504F,   0.0170312505F,   0.0198437516F,
    0.0226562507F,   0.0254687499F,   0.028281251F,    0.0310937501F,   0.0339062512F,
    0.0367187522F,   0.0395312496F,   0.0423437469F,   0.0451562516F,   0.047968749F,
    0.05078125F,     0.053593751F,    0.0564062484F,   0.0592187531F,   0.0620312504F,
    0.0648437515F,   0.0676562563F,   0.0704687461F,   0.0732812509F,   0.0760937482F,
    0.078906253F,    0.0817187577F,   0.0845312476F,   0.0873437524F,   0.0901562497F,
    0.0929687545F,   0.0957812592F,   0.0985937491F,   0.107031256F,    0.12109375F,
    0.135156244F,    0.149218753F,    0.163281247F,    0.177343756F,    0.19140625F,
    0.205468744F,    0.219531253F,    0.233593747F,    0.247656241F,    0.26171875F,
    0.275781274F,    0.289843738F,    0.303906262F,    0.317968726F,    0.33203125F,
    0.346093744F,    0.360156238F,    0.374218762F,    0.388281226F,    0.40234375F,
    0.416406244F,    0.430468738F,    0.444531262F,    0.458593726F,    0.47265625F,
    0.486718714F,    0.500781238F,    0.514843702F,    0.528906226F,    0.54296875F,
    0.557031274F,    0.571093798F,    0.585156262F,    0.599218726F,    0.61328125F,
    0.627343774F,    0.641406298F,    0.655468762F,    0.669531226F,    0.68359375F,
    0.697656274F,    0.711718798F,    0.725781262F,    0.739843726F,    0.75390625F,
    0.767968774F,    0.782031238F,    0.796093762F,    0.810156226F,    0.82421875F,
    0.838281274F,    0.852343738F,    0.866406262F,    0.880468726F,    0.89453125F,
    0.908593774F,    0.922656238F,    0.936718762F,    0.950781226F,    0.96484375F,
    0.978906274F,    0.992968738F};

std::array<float, 256> make_scale_levels() {
  std::array<float, 256> levels{};
  for (size_t i = 0; i < kPositive.size(); ++i) {
    levels[126 - i] = -kPositive[i];
    levels[128 + i] = kPositive[i];
  }
  levels[255] = 1.0F;
  return levels;
}

// A scale is rounded to one of 65536 places between -1 and 1 first, and then to the level nearest
// to that place, as in bitsandbytes.
constexpr int64_t kPlaces = 65536;
constexpr float kHalfPlaces = 32767.5F;

std::array<uint8_t, kPlaces> make_codes_of_places() {
  const std::array<float, 256>& levels = nf4_scale_levels();
  std::array<uint8_t, kPlaces> codes{};
  size_t code = 0;
  for (int64_t place = 0; place < kPlaces; ++place) {
    const double value = static_cast<double>(place) / static_cast<double>(kHalfPlaces) - 1.0;
    while (code < 255 && levels[code + 1] - value < value - levels[code]) ++code;
    codes[static_cast<size_t>(place)] = static_cast<uint8_t>(code);
  }
  return codes;
}

uint8_t code_of_scale(float share) {
  static const std::array<uint8_t, kPlaces> codes = make_codes_of_places();
  return codes[static_cast<size_t>((share + 1.0F) * kHalfPlaces + 0.5F)];
}

// Counts the middles between neighbouring levels that are below the value.
uint8_t code_of_value(float share) {
  uint8_t code = 0;
  for (size_t i = 0; i + 1 < kNf4Levels.size(); ++i) {
    code += share > (kNf4Levels[i] + kNf4Levels[i + 1]) / 2.0F ? 1 : 0;
  }
  return code;
}

// Returns the scale of the values, at most 64, and writes their codes, one a byte. A whole block is
// multiplied by the inverse, a shorter one divided, as in bitsandbytes.
float encode_block(std::span<const float> values, std::span<uint8_t> codes) {
  float scale = 0.0F;
  for (const float value : values) scale = std::max(scale, std::fabs(value));
  const bool whole = values.size() == static_cast<size_t>(kBlock);
  const float divisor = std::max(scale, kLeastScale);
  const float inverse = 1.0F / divisor;
  for (size_t i = 0; i < values.size(); ++i) {
    const float share = whole ? values[i] * inverse : values[i] / divisor;
    codes[i] = code_of_value(std::clamp(share, -1.0F, 1.0F));
  }
  return whole ? scale : divisor;
}

void put_float(std::span<std::byte> packed, Bytes at, float value) {
  std::memcpy(packed.data() + at, &value, sizeof(value));
}
float float_at(std::span<const std::byte> packed, Bytes at) {
  float value = 0.0F;
  std::memcpy(&value, packed.data() + at, sizeof(value));
  return value;
}

// Writes the mean, the groups and the codes of all scales.
void encode_scales(const Nf4Layout& layout, std::span<const float> scales,
                   std::span<std::byte> packed) {
  double sum = 0.0;
  for (const float scale : scales) sum += scale;
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  put_float(packed, 0, mean);
  for (int64_t group = 0; group < layout.groups(); ++group) {
    const int64_t begin = group * kGroup, end = std::min(begin + kGroup, layout.blocks());
    float largest = 0.0F;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(scales[static_cast<size_t>(i)] - mean));
    }
    put_float(packed, layout.largest_begin() + 4 * group, largest);
    const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F;
    for (int64_t i = begin; i < end; ++i) {
      const float share = (scales[static_cast<size_t>(i)] - mean) * inverse;
      packed[static_cast<size_t>(layout.scales_begin() + i)] =
          std::byte{code_of_scale(std::clamp(share, -1.0F, 1.0F))};
    }
  }
}

// The levels of the two codes of a byte.
struct LevelPair {
  float first = 0.0F, second = 0.0F;
};
constexpr std::array<LevelPair, 256> make_level_pairs() {
  std::array<LevelPair, 256> pairs{};
  for (size_t byte = 0; byte < pairs.size(); ++byte) {
    pairs[byte] = {kNf4Levels[byte >> 4], kNf4Levels[byte & 15]};
  }
  return pairs;
}
constexpr std::array<LevelPair, 256> kLevelPairs = make_level_pairs();

// Writes the values from `begin` on, which are in one block, from the codes of the tensor. A lookup
// gives two values: that is several times as fast as to ask for each which half of a byte it is.
void decode_in_block(const std::byte* codes, int64_t begin, float scale, std::span<float> out) {
  const std::byte* pair = codes + begin / 2;
  const auto levels = [&] { return kLevelPairs[static_cast<size_t>(*pair++)]; };
  size_t at = 0;
  if (begin % 2 != 0) out[at++] = levels().second * scale;
  for (; at + 2 <= out.size(); at += 2) {
    const LevelPair both = levels();
    out[at] = both.first * scale;
    out[at + 1] = both.second * scale;
  }
  if (at < out.size()) out[at] = levels().first * scale;
}

// Writes the values from `begin` on; scale_of(block) is called once a block.
template <typename ScaleOf>
void decode_blocks(std::span<const std::byte> codes, int64_t begin, std::span<float> out,
                   const ScaleOf& scale_of) {
  while (!out.empty()) {
    const int64_t block = begin / kBlock;
    const auto count = std::min(static_cast<size_t>((block + 1) * kBlock - begin), out.size());
    decode_in_block(codes.data(), begin, scale_of(block), out.first(count));
    begin += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

}  // namespace

const std::array<float, 256>& nf4_scale_levels() {
  static const std::array<float, 256> levels = make_scale_levels();
  return levels;
}

void encode_nf4(const Nf4Layout& layout, const ReadValues& read, std::span<std::byte> packed) {
  LONGSHORE_CHECK(layout.elements() > 0 && static_cast<Bytes>(packed.size()) == layout.bytes())
      << layout.elements() << " values in " << packed.size() << " bytes";
  std::ranges::fill(packed, std::byte{0});
  std::vector<float> scales(static_cast<size_t>(layout.blocks()));
  std::vector<float> piece(static_cast<size_t>(std::min(kPiece, layout.elements())));
  // The code of 0 fills the last byte where the number of values is odd.
  const uint8_t zero = code_of_value(0.0F);
  std::array<uint8_t, kBlock> codes{};
  std::span<const float> values;  // of the piece, from the block on
  for (int64_t block = 0; block < layout.blocks(); ++block) {
    const int64_t begin = block * kBlock;
    if (begin % kPiece == 0) {
      values =
          std::span(piece).first(static_cast<size_t>(std::min(kPiece, layout.elements() - begin)));
      read(begin, std::span(piece).first(values.size()));
    }
    const size_t count = std::min(static_cast<size_t>(kBlock), values.size());
    codes.fill(zero);
    scales[static_cast<size_t>(block)] = encode_block(values.first(count), codes);
    values = values.subspan(count);
    std::byte* const out = packed.data() + layout.codes_begin() + begin / 2;
    for (size_t i = 0; i < count; i += 2) {
      out[i / 2] = static_cast<std::byte>(codes[i] << 4 | codes[i + 1]);
    }
  }
  encode_scales(layout, scales, packed);
}

void decode_nf4(const Nf4Layout& layout, std::span<const std::byte> packed, int64_t begin,
                std::span<float> out) {
  LONGSHORE_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= layout.elements());
  const std::array<float, 256>& levels = nf4_scale_levels();
  const float mean = float_at(packed, 0);
  decode_blocks(
      packed.subspan(static_cast<size_t>(layout.codes_begin())), begin, out, [&](int64_t block) {
        const auto code =
            static_cast<size_t>(packed[static_cast<size_t>(layout.scales_begin() + block)]);
        const Bytes group = layout.largest_begin() + 4 * (block / kGroup);
        return levels[code] * float_at(packed, group) + mean;
      });
}

void decode_nf4_f32(const Nf4F32Layout& layout, std::span<const std::byte> packed, int64_t begin,
                    std::span<float> out) {
  LONGSHORE_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= layout.elements());
  decode_blocks(packed.subspan(static_cast<size_t>(layout.codes_begin())), begin, out,
                [&](int64_t block) { return float_at(packed, 4 * block); });
}

void decode_nf4_codes(std::span<const std::byte> codes, std::span<const float> scales,
                      int64_t begin, std::span<float> out) {
  decode_blocks(codes, begin, out,
                [&](int64_t block) { return scales[static_cast<size_t>(block)]; });
}

}  // namespace longshore
