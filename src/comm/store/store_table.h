// StoreTable: the keys and values of a store, within limits. The server owns it; one thread.
#pragma once

#include <map>
#include <string>

#include "base/bytes.h"
#include "comm/store/store_messages.h"

namespace longshore {

class StoreTable {
 public:
  StoreTable(size_t max_keys, Bytes max_bytes) : max_keys_(max_keys), max_bytes_(max_bytes) {}

  // Executes a parsed request. If it is impossible, the reply has the reason and nothing changes.
  StoreReply answer(const StoreRequest& request);

  size_t keys() const { return values_.size(); }
  // Returns the bytes of keys and values, with a fixed overhead per entry.
  Bytes bytes() const { return bytes_; }

 private:
  StoreReply get(const StoreRequest& request) const;
  StoreReply compare_set(const StoreRequest& request);
  StoreReply add(const StoreRequest& request);
  StoreReply append(const StoreRequest& request);
  StoreReply put(const std::string& key, const std::string& value);
  const std::string* find(const std::string& key) const;

  size_t max_keys_;
  Bytes max_bytes_;
  std::map<std::string, std::string> values_;
  Bytes bytes_ = 0;
};

}  // namespace longshore
