#include "comm/store/torch_store.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause(50);
// The maximum length of an address in the agent's store.
constexpr size_t kMaxAddress = 300;
constexpr int kFatalOnly = 3;  // LibTorch's level number

std::vector<uint8_t> to_value(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string to_text(const std::vector<uint8_t>& value) {
  return {value.begin(), value.end()};
}

class OverConnection : public c10d::Store {
 public:
  OverConnection(const StoreConnection& connection, milliseconds timeout)
      : c10d::Store(timeout), connection_(connection) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<OverConnection>(connection_, timeout_);
  }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    connection_.set(key, to_text(value));
  }

  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& value) override {
    return to_value(connection_.compare_set(key, to_text(expected), to_text(value)));
  }

  std::vector<uint8_t> get(const std::string& key) override { return multiGet({key}).front(); }
  int64_t add(const std::string& key, int64_t value) override {
    return connection_.add(key, value);
  }
  bool deleteKey(const std::string& key) override { return connection_.remove(key); }
  bool check(const std::vector<std::string>& keys) override { return connection_.has(keys); }
  int64_t getNumKeys() override { return connection_.count(); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const Clock::time_point end = Clock::now() + timeout;
    for (milliseconds pause(1); !connection_.has(keys);
         pause = std::min(pause * 2, kLongestPause)) {
      if (Clock::now() > end) {
        throw StoreError("a value that another rank should have set is missing");
      }
      std::this_thread::sleep_for(pause);
    }
  }

  bool hasExtendedApi() const override { return true; }
  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    connection_.append(key, to_text(value));
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& text : connection_.get(keys)) values.push_back(to_value(text));
    return values;
  }
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override {
    if (keys.size() != values.size()) throw StoreError("as many values as keys are needed");
    for (size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
  }

 private:
  StoreConnection connection_;
};

// Keeps only the first line, because c10 appends a backtrace.
template <typename Call>
auto or_store_error(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw StoreError("torchrun's agent: " + text.substr(0, text.find('\n')));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_torch_store(const StoreConnection& connection,
                                                 milliseconds timeout) {
  return c10::make_intrusive<OverConnection>(connection, timeout);
}

AgentStore::AgentStore(const StoreAddress& address, milliseconds timeout)
    : former_log_level_(std::exchange(FLAGS_caffe2_log_level, kFatalOnly)) {
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.waitWorkers = false;
  options.timeout = timeout;
  store_ = or_store_error([&]() -> c10::intrusive_ptr<c10d::Store> {
    return c10::make_intrusive<c10d::TCPStore>(address.host, options);
  });
}

AgentStore::~AgentStore() {
  FLAGS_caffe2_log_level = former_log_level_;
}

void AgentStore::publish(const std::string& key, const StoreAddress& address) {
  or_store_error([&] { store_->set(key, to_value(address.text())); });
}

bool AgentStore::find(const std::string& key, StoreAddress& address) {
  return or_store_error([&] {
    if (!store_->check({key})) return false;
    const std::vector<uint8_t> value = store_->get(key);
    return value.size() <= kMaxAddress && parse_store_address(to_text(value), address);
  });
}

}  // namespace longshore
