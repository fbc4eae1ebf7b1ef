#include "comm/store/store_messages.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr size_t kFrameBytes = sizeof(uint32_t);

template <typename Number>
void append_number(std::string& out, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    out.push_back(static_cast<char>((number >> (8 * i)) & 0xff));
  }
}

// Takes fields from the front of a body. After a missing field all further fields are missing.
class FieldReader {
 public:
  explicit FieldReader(std::string_view body) : rest_(body) {}

  template <typename Number>
  Number number() {
    const std::string_view bytes = take(sizeof(Number));
    Number value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value = static_cast<Number>(
          value |
          static_cast<Number>(static_cast<Number>(static_cast<uint8_t>(bytes[i])) << (8 * i)));
    }
    return value;
  }

  // Takes a string that is preceded by its length.
  template <typename Length>
  std::string text(size_t max_bytes) {
    const size_t length = number<Length>();
    if (length > max_bytes) ok_ = false;
    return std::string(take(length));
  }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view take(size_t bytes) {
    if (!ok_ || bytes > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Finds the body of the message at the beginning of `bytes`.
Parsed take_body(std::string_view bytes, std::string_view& body) {
  if (bytes.size() < kFrameBytes) return Parsed::kIncomplete;
  const size_t length = FieldReader(bytes).number<uint32_t>();
  if (length == 0 || static_cast<Bytes>(length) > kMaxStoreBody) return Parsed::kBad;
  if (bytes.size() - kFrameBytes < length) return Parsed::kIncomplete;
  body = bytes.substr(kFrameBytes, length);
  return Parsed::kDone;
}

std::string framed(const std::string& body) {
  LONGSHORE_CHECK(static_cast<Bytes>(body.size()) <= kMaxStoreBody) << body.size();
  std::string bytes;
  bytes.reserve(kFrameBytes + body.size());
  append_number(bytes, static_cast<uint32_t>(body.size()));
  return bytes + body;
}

// Checks that the command has the number of keys that it needs.
bool has_its_keys(const StoreRequest& request) {
  switch (request.command) {
    case StoreCommand::kGet:
    case StoreCommand::kHas:
      return !request.keys.empty();
    case StoreCommand::kCount:
      return request.keys.empty();
    case StoreCommand::kSet:
    case StoreCommand::kCompareSet:
    case StoreCommand::kAdd:
    case StoreCommand::kAppend:
    case StoreCommand::kDelete:
      return request.keys.size() == 1;
  }
  return false;
}

}  // namespace

Parsed parse_hello(std::string_view bytes, StoreHello& hello) {
  const size_t magic = std::min(bytes.size(), kStoreMagicBytes);
  // The first wrong byte decides, so that the server does not wait for the rest.
  if (bytes.substr(0, magic) != kStoreHelloMagic.substr(0, magic)) return Parsed::kBad;
  if (bytes.size() > kStoreHelloBytes) return Parsed::kBad;
  if (bytes.size() < kStoreHelloBytes) return Parsed::kIncomplete;
  const std::string_view fields = bytes.substr(kStoreMagicBytes);
  std::copy_n(fields.begin(), kStoreNonceBytes, hello.nonce.begin());
  std::copy_n(fields.begin() + kStoreNonceBytes, kStoreProofBytes, hello.proof.begin());
  return Parsed::kDone;
}

Parsed parse_request(std::string_view bytes, StoreRequest& request, size_t& used) {
  std::string_view body;
  const Parsed found = take_body(bytes, body);
  if (found != Parsed::kDone) return found;
  FieldReader reader(body);
  const auto command = reader.number<uint8_t>();
  if (command == 0 || command > kLastStoreCommand) return Parsed::kBad;
  request.command = static_cast<StoreCommand>(command);
  request.keys.clear();
  const size_t keys = reader.number<uint16_t>();
  if (keys > kMaxStoreKeys) return Parsed::kBad;
  for (size_t i = 0; i < keys && reader.ok(); ++i) {
    request.keys.push_back(reader.text<uint16_t>(kMaxStoreKey));
    if (request.keys.back().empty()) return Parsed::kBad;
  }
  request.expected = reader.text<uint32_t>(static_cast<size_t>(kMaxStoreValue));
  request.value = reader.text<uint32_t>(static_cast<size_t>(kMaxStoreValue));
  if (!reader.at_end() || !has_its_keys(request)) return Parsed::kBad;
  used = kFrameBytes + body.size();
  return Parsed::kDone;
}

Parsed parse_reply(std::string_view bytes, StoreReply& reply, size_t& used) {
  std::string_view body;
  const Parsed found = take_body(bytes, body);
  if (found != Parsed::kDone) return found;
  FieldReader reader(body);
  const auto status = reader.number<uint8_t>();
  if (status > 1) return Parsed::kBad;
  reply.done = status == 1;
  reply.values.clear();
  const size_t values = reader.number<uint16_t>();
  if (values > kMaxStoreKeys) return Parsed::kBad;
  for (size_t i = 0; i < values && reader.ok(); ++i) {
    reply.values.push_back(reader.text<uint32_t>(static_cast<size_t>(kMaxStoreValue)));
  }
  if (!reader.at_end()) return Parsed::kBad;
  used = kFrameBytes + body.size();
  return Parsed::kDone;
}

std::string to_bytes(const StoreHello& hello) {
  std::string bytes(kStoreHelloMagic);
  bytes.append(hello.nonce.data(), hello.nonce.size());
  bytes.append(hello.proof.data(), hello.proof.size());
  return bytes;
}

std::string to_bytes(const StoreRequest& request) {
  std::string body;
  body.push_back(static_cast<char>(request.command));
  append_number(body, static_cast<uint16_t>(request.keys.size()));
  for (const std::string& key : request.keys) {
    append_number(body, static_cast<uint16_t>(key.size()));
    body += key;
  }
  for (const std::string* text : {&request.expected, &request.value}) {
    append_number(body, static_cast<uint32_t>(text->size()));
    body += *text;
  }
  return framed(body);
}

std::string to_bytes(const StoreReply& reply) {
  std::string body;
  body.push_back(reply.done ? 1 : 0);
  append_number(body, static_cast<uint16_t>(reply.values.size()));
  for (const std::string& value : reply.values) {
    append_number(body, static_cast<uint32_t>(value.size()));
    body += value;
  }
  return framed(body);
}

bool parse_store_number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace longshore
