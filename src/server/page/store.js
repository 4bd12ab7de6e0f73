// What the browser keeps: conversations and settings in localStorage, documents, which may be larger than its 5 MB, in
// IndexedDB. Either may be full or switched off; then `store.failed` is told why, and the page goes on without.

const PREFIX = "mneme.conversation.";

class Store {
  failed = () => {};

  // A conversation: {id, title, updated, system, tools, draft, document: {name, key, length} or null, turns}. A turn:
  // {question, answer, thought, calls, steps, state, error, partial, method, budget, system, document, usage, retrieval,
  // reads, seconds}; calls: [{id, name, arguments, result}]; steps: [{answer, thought, calls}] before the answer.
  conversations() {
    const found = [];
    try {
      for (let i = 0; i < localStorage.length; ++i)
        if (localStorage.key(i).startsWith(PREFIX)) found.push(this.read(localStorage.key(i)));
    } catch (e) {
      this.failed(e);
    }
    return found.filter(c => c && Array.isArray(c.turns)).sort((a, b) => b.updated - a.updated);
  }

  read(key) {
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch (e) {
      return null;
    }
  }

  write(key, value) {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch (e) {
      this.failed(e);
    }
  }

  // Where there is no room for all of it, reads of the earlier answers go, which are the largest part.
  save(conversation) {
    const key = PREFIX + conversation.id;
    try {
      localStorage.setItem(key, JSON.stringify(conversation));
    } catch (e) {
      for (const turn of conversation.turns.slice(0, -1)) turn.reads = null;
      this.write(key, conversation);
    }
  }

  remove(conversation) {
    localStorage.removeItem(PREFIX + conversation.id);
  }

  // Documents by key, so that conversations about one share it.
  async documents(mode, act) {
    this.database ??= new Promise((resolve, reject) => {
      const open = indexedDB.open("mneme", 1);
      open.onupgradeneeded = () => open.result.createObjectStore("documents");
      open.onsuccess = () => resolve(open.result);
      open.onerror = () => reject(open.error);
    });
    const request = act((await this.database).transaction("documents", mode).objectStore("documents"));
    return new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  }

  async saveDocument(key, text) {
    try {
      await this.documents("readwrite", all => all.put(text, key));
    } catch (e) {
      this.failed(e);
    }
  }

  async document(key) {
    try {
      return await this.documents("readonly", all => all.get(key));
    } catch (e) {
      this.failed(e);
      return undefined;
    }
  }

  // Drops the documents that no conversation names.
  async sweep() {
    const used = new Set(this.conversations().flatMap(c => c.document ? [c.document.key] : []));
    try {
      for (const key of await this.documents("readonly", all => all.getAllKeys()))
        if (!used.has(key)) await this.documents("readwrite", all => all.delete(key));
    } catch (e) {
      this.failed(e);
    }
  }
}

// 53 bits of a text's contents: names a document within one browser.
function textKey(text) {
  let a = 0xdeadbeef, b = 0x41c6ce57;
  for (let i = 0; i < text.length; ++i) {
    const c = text.charCodeAt(i);
    a = Math.imul(a ^ c, 2654435761);
    b = Math.imul(b ^ c, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36) + "-" + text.length;
}
