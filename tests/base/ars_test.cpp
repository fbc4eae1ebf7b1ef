#include "base/random.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

using Words = std::array<uint32_t, 4>;

// ARS with ten rounds gives the known answers that the authors' Random123 library ships.
TEST(Ars, GivesThePublishedAnswers) {
  EXPECT_EQ(ars4x32<10>({0, 0, 0, 0}, {0, 0}),
            (Words{0x8d73ee19u, 0x506401efu, 0x13c2dbe4u, 0x0cbe9c0du}));
  EXPECT_EQ(ars4x32<10>({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                        {0x299f31d0a4093822u, 0xec4e6c89082efa98u}),
            (Words{0xa516e7d6u, 0x8357ad74u, 0x5b59b3ecu, 0x8763fff3u}));
  EXPECT_EQ(ars4x32<10>({~0u, ~0u, ~0u, ~0u}, {~uint64_t{0}, 0}),
            (Words{0xbb3743b1u, 0x9f635551u, 0xecbc87fcu, 0xa19478a9u}));
}

}  // namespace
}  // namespace longshore
