// The outcome of a call that the system can refuse.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace jiffy {

// Either success, which is one null pointer, or a sentence that says what was needed, what was
// found and what to do. Movable, not thread safe.
class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status error(std::string message) {
    Status status;
    status.message_ = std::make_unique<std::string>(std::move(message));
    return status;
  }

  bool ok() const { return message_ == nullptr; }
  explicit operator bool() const { return ok(); }
  // Empty on success.
  const std::string& message() const {
    static const std::string kNone;
    return message_ == nullptr ? kNone : *message_;
  }

 private:
  std::unique_ptr<std::string> message_;
};

}  // namespace jiffy
