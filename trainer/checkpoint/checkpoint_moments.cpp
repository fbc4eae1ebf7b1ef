#include "trainer/checkpoint/checkpoint_moments.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kUnitBytes = sizeof(float);

// Calls use(block index, elements before the block, elements in the block).
template <typename Use>
void for_each_block_of(int64_t elements, const Use& use) {
  for (int64_t before = 0; before < elements; before += kMomentBlockElements) {
    use(static_cast<size_t>(before / kMomentBlockElements), static_cast<size_t>(before),
        static_cast<size_t>(std::min(kMomentBlockElements, elements - before)));
  }
}

}  // namespace

TensorDType stored_dtype(MomentFormat format) {
  if (format == MomentFormat::kF32) return TensorDType::kF32;
  return format == MomentFormat::kBF16 ? TensorDType::kBF16 : TensorDType::kU8;
}

std::optional<MomentFormat> moment_format_of(TensorDType dtype) {
  for (const MomentTraits& traits : kMomentFormats) {
    if (stored_dtype(traits.format) == dtype) return traits.format;
  }
  return std::nullopt;
}

Bytes stored_bytes(MomentFormat format, int64_t elements) {
  return elements * width_of(format) + moment_blocks(format, elements) * kUnitBytes;
}

void append_stored(const MomentSpan& from, int64_t begin, int64_t elements,
                   std::vector<std::byte>& to) {
  const MomentSpan part = from.part(begin, elements);
  if (!has_scales(part.format)) {
    to.insert(to.end(), part.values.begin(), part.values.end());
    return;
  }
  for_each_block_of(elements, [&](size_t block, size_t before, size_t count) {
    const auto unit = std::as_bytes(part.units.subspan(block, 1));
    to.insert(to.end(), unit.begin(), unit.end());
    const auto codes = part.values.subspan(before, count);
    to.insert(to.end(), codes.begin(), codes.end());
  });
}

StoredMoments::StoredMoments(MomentFormat format, int64_t elements,
                             std::span<const std::byte> bytes)
    : format_(format), elements_(elements) {
  LONGSHORE_CHECK(static_cast<Bytes>(bytes.size()) == stored_bytes(format, elements));
  if (!has_scales(format)) {
    values_.assign(bytes.begin(), bytes.end());
    return;
  }
  values_.resize(static_cast<size_t>(elements));
  units_.resize(static_cast<size_t>(moment_blocks(format, elements)));
  for_each_block_of(elements, [&](size_t block, size_t before, size_t count) {
    const std::byte* stored = bytes.data() + before + block * kUnitBytes;
    std::memcpy(&units_[block], stored, kUnitBytes);
    std::memcpy(&values_[before], stored + kUnitBytes, count);
  });
}

MomentSpan StoredMoments::span() const {
  // MomentSpan is writable, hence the casts; callers only read through this one.
  return {format_, std::span(const_cast<std::byte*>(values_.data()), values_.size()),
          std::span(const_cast<float*>(units_.data()), units_.size())};
}

void StoredMoments::read(Moment which, int64_t from, std::span<float> values) const {
  read_moments(which, span(), from, values);
}

bool StoredMoments::copy_to(Moment which, int64_t from, int64_t elements, const MomentSpan& to,
                            int64_t begin) const {
  const auto at_block = [](int64_t element) { return element % kMomentBlockElements == 0; };
  if (has_scales(to.format) && !at_block(begin)) return false;
  if (to.format != format_ || (has_scales(format_) && !at_block(from))) {
    std::vector<float> values(static_cast<size_t>(elements));
    read(which, from, values);
    write_moments(which, to, begin, values);
    return true;
  }
  const MomentSpan source = span().part(from, elements);
  const MomentSpan target = to.part(begin, elements);
  std::ranges::copy(source.values, target.values.begin());
  std::ranges::copy(source.units, target.units.begin());
  return true;
}

std::string describe_rounding(const CheckpointManifest& from, StateFormat to) {
  const std::optional<StateFormat> written = parse_state_format(from.state_format);
  const bool exact = moments_of_matrices(to) == MomentFormat::kF32 ||
                     (written && moments_of_matrices(*written) == moments_of_matrices(to));
  if (exact) return "";
  return "offload.state_format = \"" + std::string(name_of(to)) +
         "\" cannot hold the moments of a checkpoint of \"" + from.state_format +
         "\" exactly: they are rounded once; parameters and masters are exact";
}

}  // namespace longshore
