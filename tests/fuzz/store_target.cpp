// The messages from the sockets of the rendezvous store, and the table behind them.
#include "comm/store/store_messages.h"
#include "comm/store/store_table.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {
namespace {

// Checks that writing a parsed message gives the bytes that were read.
template <typename Message, typename Parse>
bool read_and_write(std::string_view bytes, Message& message, size_t& used, const Parse& parse) {
  if (parse(bytes, message, used) != Parsed::kDone) return false;
  LONGSHORE_CHECK(used > 0 && used <= bytes.size());
  LONGSHORE_CHECK(to_bytes(message) == bytes.substr(0, used));
  return true;
}

}  // namespace

bool fuzz_store(std::string_view all) {
  StoreHello hello;
  bool known = parse_hello(all, hello) == Parsed::kDone;
  LONGSHORE_CHECK(!known || to_bytes(hello) == all);
  StoreReply reply;
  size_t used = 0;
  known = read_and_write(all, reply, used, parse_reply) || known;

  constexpr Bytes kMaxBytes = 4096;
  constexpr size_t kMaxKeys = 16;
  StoreTable table(kMaxKeys, kMaxBytes);
  StoreRequest request;
  for (std::string_view rest = all; read_and_write(rest, request, used, parse_request);
       rest.remove_prefix(used)) {
    known = true;
    const StoreReply answer = table.answer(request);
    LONGSHORE_CHECK(table.keys() <= kMaxKeys && table.bytes() >= 0 && table.bytes() <= kMaxBytes);
    StoreReply read;
    size_t length = 0;
    const std::string bytes = to_bytes(answer);
    LONGSHORE_CHECK(parse_reply(bytes, read, length) == Parsed::kDone && length == bytes.size());
    LONGSHORE_CHECK(read == answer);
  }
  return known;
}

}  // namespace longshore
