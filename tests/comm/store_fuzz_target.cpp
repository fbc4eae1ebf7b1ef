// Fuzz target for the parsers of bytes from the store's sockets, and the table behind them.
// libFuzzer calls it in scripts/dev/long; store_messages_test.cpp replays tests/comm/store_corpus
// with it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/store/store_messages.h"
#include "comm/store/store_table.h"

namespace {

void expect(bool truth) {
  if (!truth) std::abort();
}

// Checks that writing a parsed message gives the bytes that were read.
template <typename Message, typename Parse>
bool read_and_write(std::string_view bytes, Message& message, size_t& used, const Parse& parse) {
  if (parse(bytes, message, used) != longshore::Parsed::kDone) return false;
  expect(used > 0 && used <= bytes.size());
  expect(to_bytes(message) == bytes.substr(0, used));
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longshore;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  StoreHello hello;
  if (parse_hello(all, hello) == Parsed::kDone) expect(to_bytes(hello) == all);
  StoreReply reply;
  size_t used = 0;
  read_and_write(all, reply, used, parse_reply);

  constexpr Bytes kMaxBytes = 4096;
  constexpr size_t kMaxKeys = 16;
  StoreTable table(kMaxKeys, kMaxBytes);
  StoreRequest request;
  for (std::string_view rest = all; read_and_write(rest, request, used, parse_request);
       rest.remove_prefix(used)) {
    const StoreReply answer = table.answer(request);
    expect(table.keys() <= kMaxKeys && table.bytes() >= 0 && table.bytes() <= kMaxBytes);
    StoreReply read;
    size_t length = 0;
    const std::string bytes = to_bytes(answer);
    expect(parse_reply(bytes, read, length) == Parsed::kDone && length == bytes.size());
    expect(read == answer);
  }
  return 0;
}
