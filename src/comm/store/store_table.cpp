#include "comm/store/store_table.h"

#include <algorithm>

#include "base/texts.h"

namespace longshore {
namespace {

// The overhead of an entry: a map node and two strings.
constexpr Bytes kPlaceBytes = 128;

StoreReply refuse(const std::string& problem) {
  return {.done = false, .values = {problem}};
}

StoreReply truth_of(bool truth) {
  return {.values = {truth ? "1" : "0"}};
}

}  // namespace

StoreReply StoreTable::answer(const StoreRequest& request) {
  switch (request.command) {
    case StoreCommand::kSet:
      return put(request.keys[0], request.value);
    case StoreCommand::kGet:
      return get(request);
    case StoreCommand::kHas:
      return truth_of(std::all_of(request.keys.begin(), request.keys.end(),
                                  [this](const std::string& key) { return find(key); }));
    case StoreCommand::kCompareSet:
      return compare_set(request);
    case StoreCommand::kAdd:
      return add(request);
    case StoreCommand::kAppend:
      return append(request);
    case StoreCommand::kDelete: {
      const std::string* value = find(request.keys[0]);
      if (value == nullptr) return truth_of(false);
      bytes_ -= kPlaceBytes + static_cast<Bytes>(request.keys[0].size() + value->size());
      values_.erase(request.keys[0]);
      return truth_of(true);
    }
    case StoreCommand::kCount:
      return {.values = {std::to_string(values_.size())}};
  }
  return refuse("no such command");
}

StoreReply StoreTable::get(const StoreRequest& request) const {
  StoreReply reply;
  Bytes bytes = 0;
  for (const std::string& key : request.keys) {
    const std::string* value = find(key);
    if (value == nullptr) return refuse("no key " + printable(key));
    bytes += static_cast<Bytes>(value->size());
    // The client requests the remaining values again.
    if (!reply.values.empty() && bytes > kMaxStoreValue) break;
    reply.values.push_back(*value);
  }
  return reply;
}

StoreReply StoreTable::compare_set(const StoreRequest& request) {
  const std::string& key = request.keys[0];
  const std::string* value = find(key);
  const bool sets = value == nullptr ? request.expected.empty() : *value == request.expected;
  if (sets) {
    StoreReply reply = put(key, request.value);
    if (reply.done) reply.values = {request.value};
    return reply;
  }
  return {.values = {value == nullptr ? request.expected : *value}};
}

StoreReply StoreTable::add(const StoreRequest& request) {
  const std::string* value = find(request.keys[0]);
  int64_t number = 0, added = 0, sum = 0;
  if ((value != nullptr && !parse_store_number(*value, number)) ||
      !parse_store_number(request.value, added) || __builtin_add_overflow(number, added, &sum)) {
    return refuse(printable(request.keys[0]) + " cannot be added to");
  }
  StoreReply reply = put(request.keys[0], std::to_string(sum));
  if (reply.done) reply.values = {std::to_string(sum)};
  return reply;
}

StoreReply StoreTable::append(const StoreRequest& request) {
  const std::string* value = find(request.keys[0]);
  if (value == nullptr) return put(request.keys[0], request.value);
  if (static_cast<Bytes>(value->size() + request.value.size()) > kMaxStoreValue) {
    return refuse(printable(request.keys[0]) + " would be longer than a value may be");
  }
  return put(request.keys[0], *value + request.value);
}

StoreReply StoreTable::put(const std::string& key, const std::string& value) {
  const auto place = values_.find(key);
  Bytes bytes = bytes_ + static_cast<Bytes>(value.size());
  if (place == values_.end()) {
    if (values_.size() >= max_keys_) return refuse("the store is full: too many keys");
    bytes += kPlaceBytes + static_cast<Bytes>(key.size());
  } else {
    bytes -= static_cast<Bytes>(place->second.size());
  }
  if (bytes > max_bytes_) return refuse("the store is full: too many bytes");
  values_.insert_or_assign(key, value);
  bytes_ = bytes;
  return {};
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto place = values_.find(key);
  return place == values_.end() ? nullptr : &place->second;
}

}  // namespace longshore
