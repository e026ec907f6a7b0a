"""The rules of Fomichev, Kholod and Kocheshkov as they are printed, each reading of their text by its name."""
