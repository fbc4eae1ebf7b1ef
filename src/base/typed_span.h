// as_span: views bytes as elements of a type. The bytes must be aligned for it. Plain functions.
#pragma once

#include <cstddef>
#include <span>

namespace longshore {

template <typename T>
std::span<T> as_span(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<const T> as_span(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace longshore
