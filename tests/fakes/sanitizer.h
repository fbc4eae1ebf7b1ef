// kSanitized: whether tests run under a sanitizer, which distorts memory and time. Test code.
#pragma once

namespace longshore {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace longshore
