// Gradients in host memory: exact bytes, disjoint units, a ring that knows each slot's unit.
#include "offload/staging/gradient_drain.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

ModelSpec model_with_frozen() {
  ModelSpec model = fakes::make_small_model(3, true);
  model.units[1].parameters[1].frozen = true;
  for (ParamSpec& parameter : model.units[2].parameters) parameter.frozen = true;
  return model;
}

UnitId unit_of(size_t index) {
  return UnitId(static_cast<int32_t>(index));
}

// Every unit has its own offset, and units do not overlap.
TEST(HostGradients, HasAPlaceOfItsOwnForEveryUnit) {
  const ModelSpec model = model_with_frozen();
  WorkerPool pool(2);
  for (const int factor : {1, 3}) {
    const std::vector<FlatLayout> layouts = make_layouts(model, factor, DType::kBF16);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      HostGradients host(layouts, {.dtype = dtype}, false, pool);
      Bytes places = 0;
      for (size_t u = 0; u < layouts.size(); ++u) {
        const std::span<std::byte> whole = host.gradient(unit_of(u));
        const Bytes bytes = layouts[u].trainable_elements() / factor * width_of(dtype);
        ASSERT_EQ(static_cast<Bytes>(whole.size()), bytes);
        places += align_up(bytes, 4096);
        size_t cursor = 0;
        for (const Segment segment : kSegments) {
          const std::span<std::byte> part = host.segment(unit_of(u), segment);
          EXPECT_EQ(static_cast<Bytes>(part.size()),
                    segment == Segment::kFrozen
                        ? 0
                        : layouts[u].shard_elements(segment) * width_of(dtype));
          EXPECT_TRUE(part.empty() || part.data() == whole.data() + cursor);
          cursor += part.size();
        }
        EXPECT_EQ(cursor, whole.size());
        for (std::byte& byte : whole) {
          ASSERT_EQ(byte, std::byte{0}) << "unit " << u << " overlaps an earlier one";
          byte = std::byte{1};
        }
      }
      EXPECT_EQ(host.host_bytes(), places);
      EXPECT_EQ(HostGradients::planned_bytes(layouts, {.dtype = dtype}), places);
    }
  }
}

// Units use the slots of a ring in rotation.
TEST(HostGradients, LetsUnitsTakeTurnsInARing) {
  const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, DType::kBF16);
  WorkerPool pool(1);
  const HostGradientsOptions options{.dtype = DType::kBF16, .ring = 2};
  HostGradients host(layouts, options, false, pool);
  // The largest unit is a block of 22784 elements.
  EXPECT_EQ(host.host_bytes(), 2 * align_up(22784 * 2, 4096));
  EXPECT_EQ(HostGradients::planned_bytes(layouts, options), host.host_bytes());
  EXPECT_THROW(host.gradient(UnitId(3)), CheckFailure) << "it has no place yet";
  host.ring().claim(HostGradientSlot(0), UnitId(4));
  host.ring().claim(HostGradientSlot(1), UnitId(3));
  const std::span<std::byte> last = host.gradient(UnitId(4));
  const std::span<std::byte> block = host.gradient(UnitId(3));
  EXPECT_EQ(last.data() + host.host_bytes() / 2, block.data());
  EXPECT_EQ(static_cast<Bytes>(block.size()), 22784 * 2);
  // Unit 4 is not updated yet, so its slot is not free.
  EXPECT_THROW(host.ring().claim(HostGradientSlot(0), UnitId(1)), CheckFailure);
  EXPECT_THROW(host.ring().free(HostGradientSlot(0), UnitId(3)), CheckFailure);
  EXPECT_THROW(host.ring().check(HostGradientSlot(2), UnitId(3)), std::out_of_range);
  host.ring().free(HostGradientSlot(0), UnitId(4));
  EXPECT_THROW(host.gradient(UnitId(4)), CheckFailure) << "no longer";
  host.ring().claim(HostGradientSlot(0), UnitId(1));
  EXPECT_EQ(host.gradient(UnitId(1)).data(), last.data());
  EXPECT_EQ(host.segment(UnitId(1), Segment::kQuantisedMoments).data(), last.data());
}

}  // namespace
}  // namespace longshore
