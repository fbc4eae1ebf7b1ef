#include "shard/moments.h"

#include <cstring>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

void check_range(const MomentSpan& span, int64_t begin, size_t elements) {
  const size_t held = span.elements();
  LONGSHORE_CHECK(begin >= 0 && static_cast<size_t>(begin) <= held &&
                  elements <= held - static_cast<size_t>(begin))
      << begin << " + " << elements << " of " << held;
}

uint16_t* bf16_at(const MomentSpan& span, int64_t begin) {
  return reinterpret_cast<uint16_t*>(span.values.data()) + begin;
}

uint8_t* codes_at(const MomentSpan& span, int64_t begin) {
  return reinterpret_cast<uint8_t*>(span.values.data()) + begin;
}

float decode(Moment which, uint8_t code, float unit) {
  return which == Moment::kFirst ? decode_first_moment(code, unit)
                                 : decode_second_moment(code, unit);
}

void encode_block(Moment which, std::span<const float> values, float& unit, uint8_t* codes) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const bool first = which == Moment::kFirst;
  unit = moment_unit(first ? kFirstMomentCurve : kSecondMomentCurve, largest);
  const float inverse = 1.0f / unit;
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = first ? encode_first_moment(values[i], inverse, kNearest19)
                     : encode_second_moment(values[i], inverse, kNearest19);
  }
}

}  // namespace

MomentSpan MomentSpan::part(int64_t begin, int64_t elements) const {
  if (empty()) return *this;
  check_range(*this, begin, static_cast<size_t>(elements));
  const Bytes width = width_of(format);
  MomentSpan result{
      format,
      values.subspan(static_cast<size_t>(begin * width), static_cast<size_t>(elements * width)),
      {}};
  if (has_scales(format)) {
    LONGSHORE_CHECK(begin % kMomentBlockElements == 0) << begin;
    result.units = units.subspan(static_cast<size_t>(begin / kMomentBlockElements),
                                 static_cast<size_t>(moment_blocks(format, elements)));
  }
  return result;
}

void read_moments(Moment which, const MomentSpan& from, int64_t begin, std::span<float> values) {
  check_range(from, begin, values.size());
  if (values.empty()) return;
  switch (from.format) {
    case MomentFormat::kF32:
      std::memcpy(values.data(), from.f32().data() + begin, values.size_bytes());
      return;
    case MomentFormat::kBF16:
      for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_float(bf16_at(from, begin)[i]);
      return;
    case MomentFormat::kInt8:
      for (size_t i = 0; i < values.size(); ++i) {
        const auto block = (static_cast<size_t>(begin) + i) / kMomentBlockElements;
        values[i] = decode(which, codes_at(from, begin)[i], from.units[block]);
      }
      return;
  }
}

void write_moments(Moment which, const MomentSpan& to, int64_t begin,
                   std::span<const float> values) {
  check_range(to, begin, values.size());
  if (values.empty()) return;
  switch (to.format) {
    case MomentFormat::kF32:
      std::memcpy(to.f32().data() + begin, values.data(), values.size_bytes());
      return;
    case MomentFormat::kBF16:
      for (size_t i = 0; i < values.size(); ++i) {
        bf16_at(to, begin)[i] = float_to_bf16_nearest(values[i]);
      }
      return;
    case MomentFormat::kInt8:
      LONGSHORE_CHECK(begin % kMomentBlockElements == 0) << begin;
      for (size_t done = 0; done < values.size(); done += kMomentBlockElements) {
        const size_t count = std::min(values.size() - done, size_t{kMomentBlockElements});
        const size_t at = static_cast<size_t>(begin) + done;
        encode_block(which, values.subspan(done, count), to.units[at / kMomentBlockElements],
                     codes_at(to, begin) + done);
      }
      return;
  }
}

}  // namespace longshore
