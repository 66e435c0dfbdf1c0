// Intrusive circular lists, as the kernel uses them: no allocation, O(1) unlink from the middle.
#pragma once

#include <cstddef>

namespace jiffy {

struct ListNode {
  ListNode* prev = nullptr;
  ListNode* next = nullptr;

  bool linked() const { return next != nullptr; }

  void unlink() {
    prev->next = next;
    next->prev = prev;
    prev = next = nullptr;
  }
};

// A list of T through its member Node. Not thread safe; the owner's lock guards it.
//
//   struct Waiter { ListNode node; };
//   List<Waiter, &Waiter::node> waiters;
template <class T, ListNode T::*Node>
class List {
 public:
  List() { head_.prev = head_.next = &head_; }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const { return head_.next == &head_; }

  T* front() const { return empty() ? nullptr : owner(head_.next); }
  T* back() const { return empty() ? nullptr : owner(head_.prev); }

  // The element after `item`, or null at the end.
  T* next(T* item) const {
    ListNode* n = (item->*Node).next;
    return n == &head_ ? nullptr : owner(n);
  }

  void push_back(T* item) { insert_between(item, head_.prev, &head_); }
  void push_front(T* item) { insert_between(item, &head_, head_.next); }
  void insert_after(T* position, T* item) {
    insert_between(item, &(position->*Node), (position->*Node).next);
  }

  T* pop_front() {
    T* item = front();
    if (item != nullptr) (item->*Node).unlink();
    return item;
  }

  static void remove(T* item) { (item->*Node).unlink(); }

  // Moves everything of `other` to the tail of this list.
  void splice_back(List& other) {
    while (T* item = other.pop_front()) push_back(item);
  }

 private:
  static T* owner(ListNode* node) {
    // The offset of a member pointer, found without a T object.
    alignas(T) static constexpr char probe[sizeof(T)] = {};
    const auto offset = reinterpret_cast<const char*>(&(reinterpret_cast<const T*>(probe)->*Node)) -
                        reinterpret_cast<const char*>(probe);
    return reinterpret_cast<T*>(reinterpret_cast<char*>(node) - offset);
  }

  void insert_between(T* item, ListNode* prev, ListNode* next) {
    ListNode* node = &(item->*Node);
    node->prev = prev;
    node->next = next;
    prev->next = node;
    next->prev = node;
  }

  ListNode head_;
};

}  // namespace jiffy
