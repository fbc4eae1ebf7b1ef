// Whether tests run under a sanitizer, where memory and time say little about the program. Test
// code.
#pragma once

namespace longshore {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace longshore
