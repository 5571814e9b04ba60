// Saves value.text as a file in the browser, so that no file is written on the server.
watch("value", () => {
  const value = props.value;
  if (!value || !value.text) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([value.text], { type: value.type }));
  link.download = value.name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});
