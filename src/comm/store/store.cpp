#include "comm/store/store.h"

#include "base/errors.h"
#include "comm/store/store_connection_impl.h"

namespace longshore {
namespace {

std::vector<uint8_t> to_value(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string to_text(const std::vector<uint8_t>& value) {
  if (static_cast<Bytes>(value.size()) > kMaxStoreValue) {
    throw StoreError("a value of " + std::to_string(value.size()) + " bytes");
  }
  return {value.begin(), value.end()};
}

// The first line: c10 appends a backtrace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

template <typename Call>
auto or_store_error(const Call& call) {
  try {
    return call();
  } catch (const StoreError&) {
    throw;
  } catch (const std::exception& error) {
    throw StoreError(first_line(error));
  }
}

}  // namespace

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(uint16_t port) : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  // The other server asks the name server for the name of everyone who connects, for its log, and
  // serves nobody meanwhile: five seconds and more where the name server does not answer.
  options.useLibUV = false;
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    throw ConfigError("cannot serve the store on port " + std::to_string(port) + ": " +
                      first_line(error) + "; another run may be using the port: choose another " +
                      "with MASTER_PORT or --rendezvous");
  }
}

StoreServer::~StoreServer() = default;

uint16_t StoreServer::port() const {
  return impl_->store->getPort();
}

StoreConnection::StoreConnection(const StoreAddress& address, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.waitWorkers = false;
  options.timeout = timeout;
  or_store_error(
      [&] { impl_->store = c10::make_intrusive<c10d::TCPStore>(address.host, options); });
}

StoreConnection::~StoreConnection() = default;

void StoreConnection::set(const std::string& key, const std::string& value) {
  or_store_error([&] { impl_->store->set(key, to_value(value)); });
}

bool StoreConnection::has(const std::vector<std::string>& keys) {
  return or_store_error([&] { return impl_->store->check(keys); });
}

std::vector<std::string> StoreConnection::get(const std::vector<std::string>& keys) {
  return or_store_error([&] {
    std::vector<std::string> texts;
    for (const std::vector<uint8_t>& value : impl_->store->multiGet(keys)) {
      texts.push_back(to_text(value));
    }
    return texts;
  });
}

std::string StoreConnection::set_once(const std::string& key, const std::string& value) {
  return or_store_error(
      [&] { return to_text(impl_->store->compareSet(key, {}, to_value(value))); });
}

}  // namespace longshore
